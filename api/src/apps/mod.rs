//! `/openapi/apps`: tenants, their keys and the secrets their webhooks are signed with.

mod keys;
mod secrets;

pub(crate) use keys::{
    __path_create_key, __path_list_keys, __path_revoke_key, create_key, list_keys, revoke_key,
};
pub(crate) use secrets::{
    __path_create_secret, __path_list_secrets, __path_retire_secret, create_secret, list_secrets,
    retire_secret,
};

use crate::{
    access::{Admin, Authorized},
    input::{Findings, JsonBody, MAX_INTEGER, Object, QueryText},
    problem::Problem,
    state::ApiState,
};
use axum::{
    Json,
    extract::{Path, State},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use isocost_common::{
    id::AppId,
    store::{
        StoreError,
        apps::{self, App},
        audit,
    },
    time::EpochMillis,
};
use serde::Serialize;
use utoipa::ToSchema;

/// A tenant.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = App)]
pub(crate) struct AppView {
    /// The app.
    #[schema(value_type = String, format = Uuid)]
    app_id: AppId,
    /// Unique, for people.
    name: String,
    /// API requests a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    rate_limit_per_second: Option<u32>,
    /// Jobs that may wait at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_pending_jobs: Option<i64>,
    /// Executions that may run at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_running_executions: Option<i64>,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    created_at: EpochMillis,
    /// `whsec_…`: its first webhook secret. Shown only when the app is made.
    #[serde(skip_serializing_if = "Option::is_none")]
    webhook_secret: Option<String>,
}

impl From<App> for AppView {
    fn from(app: App) -> Self {
        Self {
            app_id: app.id,
            name: app.name,
            rate_limit_per_second: app.rate_limit_per_second,
            max_pending_jobs: app.max_pending_jobs,
            max_running_executions: app.max_running_executions,
            created_at: app.created_at,
            webhook_secret: None,
        }
    }
}

/// A tenant to make.
#[derive(ToSchema)]
#[allow(dead_code, reason = "the shape of a request that is read field by field")]
#[schema(rename_all = "camelCase", example = json!({"name": "billing", "rateLimitPerSecond": 100}))]
pub(crate) struct AppRequest {
    /// Unique, for people.
    #[schema(min_length = 1, max_length = 128)]
    name: String,
    /// API requests a second; no limit without it.
    #[schema(minimum = 1)]
    rate_limit_per_second: Option<u32>,
    /// Jobs that may wait at once; no limit without it.
    #[schema(minimum = 1)]
    max_pending_jobs: Option<i64>,
    /// Executions that may run at once; no limit without it.
    #[schema(minimum = 1)]
    max_running_executions: Option<i64>,
}

/// All of a short list.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Listed<T> {
    /// Oldest first.
    items: Vec<T>,
}

fn listed<T, V: From<T>>(items: Vec<T>) -> Json<Listed<V>> {
    Json(Listed {
        items: items.into_iter().map(V::from).collect(),
    })
}

async fn find(state: &ApiState, id: &str) -> Result<App, Problem> {
    let id: AppId = id.parse().map_err(|_| Problem::not_found("app"))?;
    let app = apps::get(&mut *state.store().reader().await?, id).await?;
    app.ok_or_else(|| Problem::not_found("app"))
}

/// The apps.
#[utoipa::path(
    get, path = "/openapi/apps", operation_id = "listApps", tag = "apps", security(("key" = ["admin"])),
    responses((status = 200, body = Listed<AppView>), crate::routes::Problems)
)]
pub(crate) async fn list(
    State(state): State<ApiState>,
    _caller: Authorized<Admin>,
    query: QueryText,
) -> Result<Json<Listed<AppView>>, Problem> {
    query.close()?;
    Ok(listed(apps::list(&mut *state.store().reader().await?).await?))
}

/// Makes an app with its first webhook secret, which is shown in this answer only.
#[utoipa::path(
    post, path = "/openapi/apps", operation_id = "createApp", tag = "apps", security(("key" = ["admin"])), request_body = AppRequest,
    responses((status = 201, body = AppView), crate::routes::SteerProblems)
)]
pub(crate) async fn create(
    State(state): State<ApiState>,
    Authorized { caller, .. }: Authorized<Admin>,
    body: JsonBody,
) -> Result<Response, Problem> {
    let now = state.store().now();
    let app = read_app(&body, AppId::generate(), now)?;
    let by = caller.did("app.create", &app.id, now);
    let stored = state
        .store()
        .transact(|| async {
            let mut tx = state.store().begin().await?;
            apps::insert(&mut tx, &app).await?;
            let signing = apps::create_webhook_secret(&mut tx, app.id, now).await?;
            audit::append(&mut tx, &by).await?;
            tx.commit().await?;
            Ok(signing)
        })
        .await;
    match stored {
        Ok(signing) => {
            let view = AppView {
                webhook_secret: Some(signing.secret),
                ..app.into()
            };
            Ok((StatusCode::CREATED, Json(view)).into_response())
        }
        Err(StoreError::Duplicate(_)) => {
            Err(Problem::conflict("app.name-taken", "another app has this name"))
        }
        Err(error) => Err(error.into()),
    }
}

/// Replaces the limits of an app; its name stays.
#[utoipa::path(
    put, path = "/openapi/apps/{id}", operation_id = "updateApp", tag = "apps", security(("key" = ["admin"])), request_body = AppRequest,
    params(("id" = String, Path, description = "App id")),
    responses((status = 200, body = AppView), crate::routes::SteerProblems)
)]
pub(crate) async fn update(
    State(state): State<ApiState>,
    Authorized { caller, .. }: Authorized<Admin>,
    Path(id): Path<String>,
    body: JsonBody,
) -> Result<Json<AppView>, Problem> {
    let before = find(&state, &id).await?;
    let wanted = read_app(&body, before.id, before.created_at)?;
    if wanted.name != before.name {
        return Err(Problem::conflict(
            "app.name-fixed",
            "the name of an app cannot be changed",
        ));
    }
    let by = caller.did("app.update", &before.id, state.store().now());
    state
        .store()
        .transact(|| async {
            let mut tx = state.store().begin().await?;
            apps::set_limits(&mut tx, &wanted).await?;
            audit::append(&mut tx, &by).await?;
            tx.commit().await
        })
        .await?;
    state.keys().forget();
    Ok(Json(wanted.into()))
}

fn read_app(body: &JsonBody, id: AppId, created_at: EpochMillis) -> Result<App, Problem> {
    let mut findings = Findings::default();
    let app = Object::of_body(body.required()?, &mut findings).and_then(|mut object| {
        let name = object
            .require("name", &mut findings)
            .and_then(|value| value.line(1..=128, &mut findings));
        let mut limit = |name, most| {
            let value = object.take(name)?;
            value.integer(1..=most, &mut findings)
        };
        let rate = limit("rateLimitPerSecond", 1_000_000);
        let pending = limit("maxPendingJobs", MAX_INTEGER);
        let running = limit("maxRunningExecutions", i64::from(u32::MAX));
        object.close(&mut findings);
        Some(App {
            id,
            name: name?,
            rate_limit_per_second: rate.and_then(|rate| u32::try_from(rate).ok()),
            max_pending_jobs: pending,
            max_running_executions: running,
            created_at,
        })
    });
    findings.into_result(app)
}

fn gone(found: bool, what: &str) -> Result<StatusCode, Problem> {
    if found {
        Ok(StatusCode::NO_CONTENT)
    } else {
        Err(Problem::not_found(what))
    }
}
