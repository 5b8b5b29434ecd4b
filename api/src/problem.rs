//! Every error as `application/problem+json` (RFC 9457). One table from kind to status, and the conversion from what
//! the store says. Causes go to the log; clients get a sentence and a way out.

use axum::{
    body::Body,
    http::{HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use isocost_common::{error_chain::chain, store::StoreError};
use serde::Serialize;
use std::{borrow::Cow, fmt};
use tracing::{error, warn};
use utoipa::ToSchema;

/// What kind of error it is. Each has a page at `/problems/<name>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The body or a parameter cannot be read, or says what cannot be done.
    InvalidRequest,
    /// No key, or not a valid one.
    Unauthorized,
    /// The key lacks a scope.
    Forbidden,
    /// There is no such thing, or it belongs to another app.
    NotFound,
    /// The address knows other methods.
    MethodNotAllowed,
    /// The body did not arrive in time.
    RequestTimeout,
    /// Not possible in the state it is in.
    Conflict,
    /// It was changed meanwhile.
    PreconditionFailed,
    /// The body is over a limit.
    TooLarge,
    /// The body is not JSON by its content type.
    UnsupportedMediaType,
    /// The idempotency key belongs to another content.
    KeyReused,
    /// `If-Match` is missing.
    PreconditionRequired,
    /// Over the app's limit.
    TooManyRequests,
    /// A fault of ours.
    Internal,
    /// It could not be made durable just now.
    Unavailable,
}

impl Kind {
    /// Every kind.
    pub(crate) const ALL: [Self; 15] = [
        Self::InvalidRequest,
        Self::Unauthorized,
        Self::Forbidden,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::RequestTimeout,
        Self::Conflict,
        Self::PreconditionFailed,
        Self::TooLarge,
        Self::UnsupportedMediaType,
        Self::KeyReused,
        Self::PreconditionRequired,
        Self::TooManyRequests,
        Self::Internal,
        Self::Unavailable,
    ];

    /// Status, name in the type's address, and title.
    const fn row(self) -> (StatusCode, &'static str, &'static str) {
        match self {
            Self::InvalidRequest => (
                StatusCode::BAD_REQUEST,
                "invalid-request",
                "The request is not valid",
            ),
            Self::Unauthorized => (
                StatusCode::UNAUTHORIZED,
                "unauthorized",
                "A valid API key is needed",
            ),
            Self::Forbidden => (
                StatusCode::FORBIDDEN,
                "forbidden",
                "The API key does not allow this",
            ),
            Self::NotFound => (StatusCode::NOT_FOUND, "not-found", "There is no such thing"),
            Self::MethodNotAllowed => (
                StatusCode::METHOD_NOT_ALLOWED,
                "method-not-allowed",
                "This address does not know the method",
            ),
            Self::RequestTimeout => (
                StatusCode::REQUEST_TIMEOUT,
                "request-timeout",
                "The request did not arrive in time",
            ),
            Self::Conflict => (
                StatusCode::CONFLICT,
                "conflict",
                "Not possible in the current state",
            ),
            Self::PreconditionFailed => (
                StatusCode::PRECONDITION_FAILED,
                "precondition-failed",
                "It was changed meanwhile",
            ),
            Self::TooLarge => (
                StatusCode::PAYLOAD_TOO_LARGE,
                "too-large",
                "The request is too large",
            ),
            Self::UnsupportedMediaType => (
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "unsupported-media-type",
                "The body must be JSON",
            ),
            Self::KeyReused => (
                StatusCode::UNPROCESSABLE_ENTITY,
                "key-reused",
                "The idempotency key was used for another content",
            ),
            Self::PreconditionRequired => (
                StatusCode::PRECONDITION_REQUIRED,
                "precondition-required",
                "The request must be conditional",
            ),
            Self::TooManyRequests => (
                StatusCode::TOO_MANY_REQUESTS,
                "too-many-requests",
                "A limit of the app is reached",
            ),
            Self::Internal => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "internal",
                "Something went wrong here",
            ),
            Self::Unavailable => (
                StatusCode::SERVICE_UNAVAILABLE,
                "unavailable",
                "The request cannot be served just now",
            ),
        }
    }

    /// Its HTTP status.
    #[must_use]
    pub(crate) const fn status(self) -> StatusCode {
        self.row().0
    }

    /// Its name in `/problems/<name>`.
    #[must_use]
    pub(crate) const fn name(self) -> &'static str {
        self.row().1
    }

    /// Its title.
    #[must_use]
    pub(crate) const fn title(self) -> &'static str {
        self.row().2
    }
}

/// One thing wrong with a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct FieldError {
    /// JSON pointer into the body; absent for a parameter or header.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "/trigger/expr")]
    pub pointer: Option<String>,
    /// Name of the field, parameter, header, or field of a cron expression.
    #[schema(example = "hour")]
    pub field: String,
    /// A stable word for programs.
    #[schema(value_type = String, example = "cron.field-out-of-range")]
    pub code: Cow<'static, str>,
    /// What is wrong and what would be right.
    pub message: String,
}

/// An error on its way to the client.
#[derive(Debug, Clone)]
pub(crate) struct Problem {
    kind: Kind,
    code: Cow<'static, str>,
    detail: String,
    errors: Vec<FieldError>,
    headers: Vec<(HeaderName, HeaderValue)>,
}

/// The body of every error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Problem)]
pub(crate) struct ProblemBody {
    /// Address of a page about this kind of error.
    #[serde(rename = "type")]
    #[schema(example = "/problems/invalid-request")]
    pub type_: String,
    /// The kind in words.
    #[schema(value_type = String)]
    pub title: &'static str,
    /// The HTTP status.
    pub status: u16,
    /// What happened and what to do.
    pub detail: String,
    /// The path of the request.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub instance: String,
    /// A stable word for programs.
    #[schema(value_type = String, example = "request.invalid")]
    pub code: Cow<'static, str>,
    /// Everything that is wrong with the request.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldError>,
    /// Names this request in the server's log.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub request_id: String,
}

impl Problem {
    /// A problem with a stable code and a sentence for people.
    pub(crate) fn new(kind: Kind, code: &'static str, detail: impl Into<String>) -> Self {
        Self {
            kind,
            code: Cow::Borrowed(code),
            detail: detail.into(),
            errors: Vec::new(),
            headers: Vec::new(),
        }
    }

    /// Everything that is wrong with a request; there must be something. One error lends its code to the whole.
    pub(crate) fn invalid(errors: Vec<FieldError>) -> Self {
        let (code, detail) = match errors.as_slice() {
            [only] => (only.code.clone(), only.message.clone()),
            several => (
                Cow::Borrowed("request.invalid"),
                format!("{} things are wrong with the request; see errors", several.len()),
            ),
        };
        Self {
            kind: Kind::InvalidRequest,
            code,
            detail,
            errors,
            headers: Vec::new(),
        }
    }

    /// There is no such thing, or it belongs to another app; `what` is "job", "execution" and so on.
    pub(crate) fn not_found(what: &str) -> Self {
        Self::new(
            Kind::NotFound,
            "request.not-found",
            format!("there is no such {what} in this app; check the id"),
        )
    }

    /// Not possible in the current state.
    pub(crate) fn conflict(code: &'static str, detail: impl Into<String>) -> Self {
        Self::new(Kind::Conflict, code, detail)
    }

    /// Adds a response header; a value that cannot be one is left out.
    #[must_use]
    pub(crate) fn with_header(mut self, name: HeaderName, value: &str) -> Self {
        if let Ok(value) = HeaderValue::from_str(value) {
            self.headers.push((name, value));
        }
        self
    }

    /// Asks the client to come back after so many seconds.
    #[must_use]
    pub(crate) fn retry_after(self, seconds: u64) -> Self {
        self.with_header(header::RETRY_AFTER, &seconds.to_string())
    }

    /// Its HTTP status.
    #[must_use]
    pub(crate) const fn status(&self) -> StatusCode {
        self.kind.status()
    }

    /// What kind it is.
    #[must_use]
    pub(crate) const fn kind(&self) -> Kind {
        self.kind
    }

    /// Its stable code.
    #[must_use]
    pub(crate) fn code(&self) -> &str {
        &self.code
    }

    /// What happened and what to do.
    #[must_use]
    pub(crate) fn detail(&self) -> &str {
        &self.detail
    }

    /// The body, as it is sent or put into the results of a batch.
    #[must_use]
    pub(crate) fn body(&self, instance: &str, request_id: &str) -> ProblemBody {
        ProblemBody {
            type_: format!("/problems/{}", self.kind.name()),
            title: self.kind.title(),
            status: self.status().as_u16(),
            detail: self.detail.clone(),
            instance: instance.to_owned(),
            code: self.code.clone(),
            errors: self.errors.clone(),
            request_id: request_id.to_owned(),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.detail)
    }
}

/// The body is filled in by [`crate::exchange`], which knows the path and the request's id.
impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = self.status();
        for (name, value) in &self.headers {
            response.headers_mut().insert(name.clone(), value.clone());
        }
        response.extensions_mut().insert(self);
        response
    }
}

/// Logs the cause, since this is where it is handled, and says what the client may know.
impl From<StoreError> for Problem {
    fn from(cause: StoreError) -> Self {
        if cause.is_transient() {
            warn!(error = %chain(&cause), "the database could not serve a request");
            return Self::new(
                Kind::Unavailable,
                "database.unavailable",
                "the database does not answer just now, so nothing can be made durable; try again with the same key",
            )
            .retry_after(1);
        }
        error!(error = %chain(&cause), "a request failed in the database");
        Self::internal()
    }
}

impl Problem {
    /// A fault of ours; its cause was logged where it was seen.
    pub(crate) fn internal() -> Self {
        Self::new(
            Kind::Internal,
            "internal",
            "the request failed for a reason inside the server; the log has it under this requestId",
        )
    }
}
