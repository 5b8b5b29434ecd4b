//! Every route, once: the router and the OpenAPI document are made from the same list.

use crate::{
    access::authenticate,
    apps, callbacks, cron, documents, events, exchange, executions, health, jobs,
    problem::{Kind, Problem, ProblemBody},
    problem_pages, schema, settings,
    state::ApiState,
    stats, workers,
};
use axum::{Router, extract::OriginalUri, http::Method, middleware};
use utoipa::{
    IntoResponses, Modify, OpenApi, ToSchema,
    openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme},
};
use utoipa_axum::{router::OpenApiRouter, routes};

/// What may go wrong with every call.
#[derive(IntoResponses)]
#[allow(dead_code, reason = "only its attributes are read, for the document")]
pub(crate) enum Problems {
    /// Malformed or not valid; `errors` names everything that is wrong.
    #[response(status = 400, content_type = "application/problem+json")]
    Invalid(ProblemBody),
    /// No valid API key.
    #[response(status = 401, content_type = "application/problem+json")]
    Unauthorized(ProblemBody),
    /// The key lacks the scope.
    #[response(status = 403, content_type = "application/problem+json")]
    Forbidden(ProblemBody),
    /// No such thing in this app.
    #[response(status = 404, content_type = "application/problem+json")]
    NotFound(ProblemBody),
    /// Over the app's limit.
    #[response(status = 429, content_type = "application/problem+json")]
    TooManyRequests(ProblemBody),
    /// A fault of the server.
    #[response(status = 500, content_type = "application/problem+json")]
    Internal(ProblemBody),
    /// Not possible just now.
    #[response(status = 503, content_type = "application/problem+json")]
    Unavailable(ProblemBody),
}

/// What may go wrong with a submission.
#[derive(IntoResponses)]
#[allow(dead_code, reason = "only its attributes are read, for the document")]
pub(crate) enum SubmitProblems {
    /// Malformed or not valid; `errors` names everything that is wrong.
    #[response(status = 400, content_type = "application/problem+json")]
    Invalid(ProblemBody),
    /// No valid API key.
    #[response(status = 401, content_type = "application/problem+json")]
    Unauthorized(ProblemBody),
    /// The key lacks the scope.
    #[response(status = 403, content_type = "application/problem+json")]
    Forbidden(ProblemBody),
    /// The key belongs to a job that was deleted less than 24 hours ago (`job.deleted`).
    #[response(status = 409, content_type = "application/problem+json")]
    Deleted(ProblemBody),
    /// The body is too large; `detail` names the limit.
    #[response(status = 413, content_type = "application/problem+json")]
    TooLarge(ProblemBody),
    /// The body is not JSON.
    #[response(status = 415, content_type = "application/problem+json")]
    UnsupportedMediaType(ProblemBody),
    /// The key was used for other content.
    #[response(status = 422, content_type = "application/problem+json")]
    KeyReused(ProblemBody),
    /// Over the app's limit.
    #[response(status = 429, content_type = "application/problem+json")]
    TooManyRequests(ProblemBody),
    /// A fault of the server.
    #[response(status = 500, content_type = "application/problem+json")]
    Internal(ProblemBody),
    /// It could not be made durable just now.
    #[response(status = 503, content_type = "application/problem+json")]
    Unavailable(ProblemBody),
}

/// What may go wrong with a call that changes something.
#[derive(IntoResponses)]
#[allow(dead_code, reason = "only its attributes are read, for the document")]
pub(crate) enum SteerProblems {
    /// Malformed or not valid; `errors` names everything that is wrong.
    #[response(status = 400, content_type = "application/problem+json")]
    Invalid(ProblemBody),
    /// No valid API key.
    #[response(status = 401, content_type = "application/problem+json")]
    Unauthorized(ProblemBody),
    /// The key lacks the scope.
    #[response(status = 403, content_type = "application/problem+json")]
    Forbidden(ProblemBody),
    /// No such thing in this app.
    #[response(status = 404, content_type = "application/problem+json")]
    NotFound(ProblemBody),
    /// Not possible in the state it is in; `detail` says why.
    #[response(status = 409, content_type = "application/problem+json")]
    Conflict(ProblemBody),
    /// Over the app's limit.
    #[response(status = 429, content_type = "application/problem+json")]
    TooManyRequests(ProblemBody),
    /// A fault of the server.
    #[response(status = 500, content_type = "application/problem+json")]
    Internal(ProblemBody),
    /// Not possible just now.
    #[response(status = 503, content_type = "application/problem+json")]
    Unavailable(ProblemBody),
}

/// Why an execution did not succeed.
#[derive(ToSchema)]
#[allow(
    dead_code,
    reason = "the shape of `ExecutionError`, which lives where there is no OpenAPI"
)]
#[schema(as = ExecutionError)]
pub(crate) struct ErrorBody {
    /// A stable word for programs.
    code: String,
    /// A sentence for people.
    message: String,
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Isocost",
        description = "Submit jobs, watch them and steer them. Every error is an `application/problem+json`.",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    components(schemas(
        schema::OnceTrigger, schema::CronTrigger, schema::FixedRateTrigger, schema::FixedDelayTrigger,
        schema::ManualTrigger, schema::AfterTrigger
    )),
    modifiers(&KeyScheme)
)]
struct Document;

struct KeyScheme;

impl Modify for KeyScheme {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let scheme = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some(
                "An API key, as the first start printed it or `/openapi/apps/{id}/keys` made it",
            ))
            .build();
        if let Some(components) = &mut document.components {
            components.add_security_scheme("key", SecurityScheme::Http(scheme));
        }
    }
}

/// Routes that need a key.
fn protected() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new()
        .routes(routes!(jobs::submit, jobs::list))
        .routes(routes!(jobs::submit_batch))
        .routes(routes!(jobs::statuses))
        .routes(routes!(jobs::bulk))
        .routes(routes!(events::stream))
        .routes(routes!(jobs::validate))
        .routes(routes!(jobs::get, jobs::patch, jobs::delete))
        .routes(routes!(jobs::pause))
        .routes(routes!(jobs::resume))
        .routes(routes!(jobs::cancel))
        .routes(routes!(jobs::trigger))
        .routes(routes!(executions::of_job))
        .routes(routes!(executions::list))
        .routes(routes!(executions::get))
        .routes(routes!(executions::logs))
        .routes(routes!(executions::cancel))
        .routes(routes!(executions::retry))
        .routes(routes!(workers::list))
        .routes(routes!(workers::drain))
        .routes(routes!(workers::undrain))
        .routes(routes!(workers::handlers))
        .routes(routes!(callbacks::list))
        .routes(routes!(callbacks::redeliver_one))
        .routes(routes!(callbacks::redeliver_range))
        .routes(routes!(stats::get))
        .routes(routes!(settings::get, settings::put))
        .routes(routes!(apps::list, apps::create))
        .routes(routes!(apps::update))
        .routes(routes!(apps::list_keys, apps::create_key))
        .routes(routes!(apps::revoke_key))
        .routes(routes!(apps::list_secrets, apps::create_secret))
        .routes(routes!(apps::retire_secret))
        .routes(routes!(cron::next))
}

/// Routes for everybody.
fn public() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new()
        .routes(routes!(health::healthz))
        .routes(routes!(health::readyz))
        .routes(routes!(health::metrics))
        .routes(routes!(problem_pages::page))
}

/// The OpenAPI 3.1 document.
#[must_use]
pub fn openapi() -> serde_json::Value {
    let document = OpenApiRouter::with_openapi(Document::openapi())
        .merge(protected())
        .merge(public())
        .into_openapi();
    documents::without_null(&document)
}

/// Everything this role serves.
pub fn router(state: ApiState) -> Router {
    let authentication = middleware::from_fn_with_state(state.clone(), authenticate);
    let (router, _) = protected()
        .route_layer(authentication)
        .merge(public())
        .split_for_parts();
    router
        .merge(documents::router(openapi()))
        .fallback(no_such_address)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(middleware::from_fn(exchange::wrap))
        .with_state(state)
}

async fn no_such_address(OriginalUri(uri): OriginalUri) -> Problem {
    Problem::new(
        Kind::NotFound,
        "request.no-such-address",
        format!("{} is no address of this API; see /docs", uri.path()),
    )
}

async fn method_not_allowed(method: Method, OriginalUri(uri): OriginalUri) -> Problem {
    Problem::new(
        Kind::MethodNotAllowed,
        "request.method-not-allowed",
        format!(
            "{} does not know {method}; the header Allow names what it knows",
            uri.path()
        ),
    )
}
