//! Who calls, and what they may do. Every route below `/openapi` passes [`authenticate`]; each handler names the scope
//! it needs by its [`Authorized`] argument.

mod admission;
mod app_names;
mod keys;
mod quota;
mod rate;

pub(crate) use admission::{Admission, HeldBytes, busy};
pub(crate) use app_names::AppNames;
pub(crate) use keys::KeyCache;
pub(crate) use quota::{PendingQuotas, over_quota};
pub(crate) use rate::RateLimits;

use crate::{
    problem::{Kind, Problem},
    state::ApiState,
};
use axum::{
    extract::{FromRequestParts, Request, State},
    http::{header, request::Parts},
    middleware::Next,
    response::{IntoResponse, Response},
};
use futures_util::StreamExt;
use isocost_common::{
    id::{ApiKeyId, AppId},
    store::{
        apps::{ApiKey, App, Scope},
        audit::AuditEntry,
    },
    time::EpochMillis,
};
use std::{marker::PhantomData, sync::Arc, time::Duration};

/// How long the body of a request that is refused may take to come.
const COMES_WITHIN: Duration = Duration::from_secs(2);

/// A key that was checked, with its app.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    key: Arc<(ApiKey, App)>,
}

impl Caller {
    /// The app it acts for.
    #[must_use]
    pub(crate) fn app(&self) -> AppId {
        self.key.1.id
    }

    /// The app with its limits.
    #[must_use]
    pub(crate) fn app_row(&self) -> &App {
        &self.key.1
    }

    /// The key it came with.
    #[must_use]
    pub(crate) fn key(&self) -> ApiKeyId {
        self.key.0.id
    }

    /// # Errors
    /// [`Problem`] 403 when its key lacks the scope.
    pub(crate) fn must_have(&self, scope: Scope) -> Result<(), Problem> {
        if self.key.0.allows(scope) {
            return Ok(());
        }
        Err(Problem::new(
            Kind::Forbidden,
            "key.scope-missing",
            format!("this needs an API key with the scope `{}`", scope.name()),
        ))
    }

    /// An audit entry of something this caller does.
    #[must_use]
    pub(crate) fn did(&self, action: &'static str, object: &impl ToString, at: EpochMillis) -> AuditEntry {
        AuditEntry {
            at,
            app: self.app(),
            key: self.key(),
            action,
            object: object.to_string(),
            detail: None,
        }
    }
}

/// A scope as a type.
pub(crate) trait Needed: Send + Sync + 'static {
    /// The scope.
    const SCOPE: Scope;
}

macro_rules! needed {
    ($($(#[$meta:meta])* $name:ident;)+) => {
        $($(#[$meta])*
        #[derive(Debug, Clone, Copy)]
        pub(crate) struct $name;

        impl Needed for $name {
            const SCOPE: Scope = Scope::$name;
        })+
    };
}

needed! {
    /// [`Scope::Submit`].
    Submit;
    /// [`Scope::Read`].
    Read;
    /// [`Scope::Manage`].
    Manage;
    /// [`Scope::Admin`].
    Admin;
}

/// A caller whose key carries the scope `S`.
#[derive(Debug, Clone)]
pub(crate) struct Authorized<S: Needed> {
    /// The caller.
    pub caller: Caller,
    scope: PhantomData<S>,
}

impl<S: Needed> FromRequestParts<ApiState> for Authorized<S> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &ApiState) -> Result<Self, Problem> {
        // Absent only where a route was put outside `authenticate`: refuse rather than serve.
        let caller = parts.extensions.get::<Caller>().cloned().ok_or_else(no_key)?;
        caller.must_have(S::SCOPE)?;
        Ok(Self {
            caller,
            scope: PhantomData,
        })
    }
}

/// Lets a request through only with a valid key, within the limits of its app.
pub(crate) async fn authenticate(
    State(state): State<ApiState>,
    mut request: Request,
    next: Next,
) -> Response {
    let in_hand = match state.admission().enter() {
        Ok(in_hand) => in_hand,
        Err(busy) => return refuse(request, busy).await,
    };
    let text = request
        .headers()
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok());
    match identify(&state, text).await {
        Ok(caller) => {
            let limit = caller.app_row().rate_limit_per_second;
            let decision = state.rates().take(caller.app(), limit);
            if let Err(problem) = decision.permitted() {
                return problem.into_response();
            }
            request.extensions_mut().insert(caller);
            let mut response = next.run(request).await;
            // A stream goes on without it: streams have a limit of their own.
            drop(in_hand);
            decision.describe(response.headers_mut());
            response
        }
        Err(problem) => problem.into_response(),
    }
}

/// Answers once the body has come, and keeps nothing of it: a client that is cut off while it sends would see a broken
/// connection in place of the answer.
async fn refuse(request: Request, problem: Problem) -> Response {
    let mut body = request.into_body().into_data_stream();
    let coming = async { while let Some(Ok(_)) = body.next().await {} };
    // The answer goes out in either case.
    let _ = tokio::time::timeout(COMES_WITHIN, coming).await;
    problem.into_response()
}

/// Who comes with this `Authorization`.
///
/// # Errors
/// [`Problem`] 401 without a live key; 503 when the key has to be looked up and the database does not answer.
pub(crate) async fn identify(state: &ApiState, authorization: Option<&str>) -> Result<Caller, Problem> {
    let text = authorization
        .and_then(|value| value.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .map(|(_, text)| text.trim())
        .ok_or_else(no_key)?;
    let key = state.keys().find(state.store(), text).await?;
    let live = key.filter(|key| key.0.is_live(state.store().now()));
    live.map(|key| Caller { key }).ok_or_else(|| {
        Problem::new(
            Kind::Unauthorized,
            "key.invalid",
            "the API key is unknown, expired or revoked; send a valid one as `Authorization: Bearer <key>`",
        )
        .with_header(
            header::WWW_AUTHENTICATE,
            r#"Bearer realm="isocost", error="invalid_token""#,
        )
    })
}

fn no_key() -> Problem {
    Problem::new(
        Kind::Unauthorized,
        "key.missing",
        "this needs an API key, sent as `Authorization: Bearer <key>`",
    )
    .with_header(header::WWW_AUTHENTICATE, r#"Bearer realm="isocost""#)
}
