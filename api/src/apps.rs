//! `/openapi/apps`: tenants, their keys and the secrets their webhooks are signed with.

use crate::{
    access::{Admin, Authorized},
    input::{Findings, JsonBody, MAX_INTEGER, Object, QueryText, Value},
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
    id::{ApiKeyId, AppId},
    store::{
        StoreError,
        apps::{self, ApiKey, App, NewKey, Scope, WebhookSecret},
        audit::{self, AuditEntry},
    },
    time::EpochMillis,
};
use serde::Serialize;
use std::time::Duration;
use utoipa::ToSchema;
use uuid::Uuid;

/// How long a retired webhook secret goes on signing, so that receivers can change over.
const ROTATION: Duration = Duration::from_secs(24 * 3_600);

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

/// An API key, without its text.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = ApiKey)]
pub(crate) struct KeyView {
    /// The key.
    #[schema(value_type = String, format = Uuid)]
    key_id: ApiKeyId,
    /// For people.
    name: String,
    /// What it allows.
    scopes: Vec<&'static str>,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    created_at: EpochMillis,
    /// Not valid from then on.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<EpochMillis>,
    /// When it was revoked.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    revoked_at: Option<EpochMillis>,
    /// What to send as `Authorization: Bearer …`. Shown only now; it is not stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
}

impl KeyView {
    fn of(key: ApiKey, text: Option<String>) -> Self {
        Self {
            key_id: key.id,
            name: key.name,
            scopes: key.scopes.iter().map(|scope| scope.name()).collect(),
            created_at: key.created_at,
            expires_at: key.expires_at,
            revoked_at: key.revoked_at,
            key: text,
        }
    }
}

/// A key to make.
#[derive(ToSchema)]
#[allow(dead_code, reason = "the shape of a request that is read field by field")]
#[schema(rename_all = "camelCase", example = json!({"name": "nightly batch", "scopes": ["submit", "read"]}))]
pub(crate) struct KeyRequest {
    /// For people.
    #[schema(min_length = 1, max_length = 128)]
    name: String,
    /// `submit`, `read`, `manage` (includes read), `admin` (includes everything).
    #[schema(min_items = 1)]
    scopes: Vec<String>,
    /// Not valid from then on; never expires without it.
    #[schema(format = DateTime)]
    expires_at: Option<String>,
}

/// A secret that webhooks are signed with.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = WebhookSecret)]
pub(crate) struct SecretView {
    /// Names it here.
    secret_id: Uuid,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    created_at: EpochMillis,
    /// When it stops signing.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    retired_at: Option<EpochMillis>,
    /// `whsec_…`. Shown only when it is made.
    #[serde(skip_serializing_if = "Option::is_none")]
    secret: Option<String>,
}

impl SecretView {
    fn of(secret: WebhookSecret, shown: bool) -> Self {
        Self {
            secret_id: secret.id,
            created_at: secret.created_at,
            retired_at: secret.retired_at,
            secret: shown.then_some(secret.secret),
        }
    }
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

/// Makes an app.
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
            apps::create_webhook_secret(&mut tx, app.id, now).await?;
            audit::append(&mut tx, &by).await?;
            tx.commit().await
        })
        .await;
    match stored {
        Ok(()) => Ok((StatusCode::CREATED, Json(AppView::from(app))).into_response()),
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

/// The keys of an app, revoked ones included.
#[utoipa::path(
    get, path = "/openapi/apps/{id}/keys", operation_id = "listKeys", tag = "apps", security(("key" = ["admin"])),
    params(("id" = String, Path, description = "App id")),
    responses((status = 200, body = Listed<KeyView>), crate::routes::Problems)
)]
pub(crate) async fn list_keys(
    State(state): State<ApiState>,
    _caller: Authorized<Admin>,
    Path(id): Path<String>,
) -> Result<Json<Listed<KeyView>>, Problem> {
    let app = find(&state, &id).await?;
    let keys = apps::list_keys(&mut *state.store().reader().await?, app.id).await?;
    Ok(Json(Listed {
        items: keys.into_iter().map(|key| KeyView::of(key, None)).collect(),
    }))
}

/// Makes a key. Its text is shown in this answer only.
#[utoipa::path(
    post, path = "/openapi/apps/{id}/keys", operation_id = "createKey", tag = "apps", security(("key" = ["admin"])), request_body = KeyRequest,
    params(("id" = String, Path, description = "App id")),
    responses((status = 201, body = KeyView), crate::routes::SteerProblems)
)]
pub(crate) async fn create_key(
    State(state): State<ApiState>,
    Authorized { caller, .. }: Authorized<Admin>,
    Path(id): Path<String>,
    body: JsonBody,
) -> Result<Response, Problem> {
    let app = find(&state, &id).await?;
    let new = read_key(&body, app.id)?;
    let by = caller.did("key.create", &app.id, state.store().now());
    let issued = state
        .store()
        .transact(|| async {
            let mut tx = state.store().begin().await?;
            let issued = apps::create_key(&mut tx, new.clone(), by.at).await?;
            audit::append(&mut tx, &by).await?;
            tx.commit().await?;
            Ok(issued)
        })
        .await?;
    Ok((
        StatusCode::CREATED,
        Json(KeyView::of(issued.key, Some(issued.text))),
    )
        .into_response())
}

fn read_key(body: &JsonBody, app: AppId) -> Result<NewKey, Problem> {
    let mut findings = Findings::default();
    let new = Object::of_body(body.required()?, &mut findings).and_then(|mut object| {
        let name = object
            .require("name", &mut findings)
            .and_then(|value| value.line(1..=128, &mut findings));
        let scopes = object
            .require("scopes", &mut findings)
            .and_then(|value| read_scopes(&value, &mut findings));
        let expires_at = object
            .take("expiresAt")
            .and_then(|value| value.instant(&mut findings));
        object.close(&mut findings);
        Some(NewKey {
            app,
            name: name?,
            scopes: scopes?,
            expires_at,
        })
    });
    findings.into_result(new)
}

fn read_scopes(value: &Value<'_>, findings: &mut Findings) -> Option<Vec<Scope>> {
    let items = value.items(Scope::ALL.len(), findings)?;
    if items.is_empty() {
        findings.push(value.error("array.empty", "must name at least one scope"));
    }
    let choices = Scope::ALL.map(|scope| (scope.name(), scope));
    items.iter().map(|item| item.choice(&choices, findings)).collect()
}

/// Revokes a key. Other processes may accept it for five seconds more.
#[utoipa::path(
    delete, path = "/openapi/apps/{id}/keys/{keyId}", operation_id = "revokeKey", tag = "apps", security(("key" = ["admin"])),
    params(("id" = String, Path, description = "App id"), ("keyId" = String, Path, description = "Key id")),
    responses((status = 204, description = "Revoked"), crate::routes::SteerProblems)
)]
pub(crate) async fn revoke_key(
    State(state): State<ApiState>,
    Authorized { caller, .. }: Authorized<Admin>,
    Path((id, key)): Path<(String, String)>,
) -> Result<StatusCode, Problem> {
    let app = find(&state, &id).await?.id;
    let key: ApiKeyId = key.parse().map_err(|_| Problem::not_found("key"))?;
    let by = caller.did("key.revoke", &key, state.store().now());
    let revoked = state
        .store()
        .transact(|| async {
            let mut tx = state.store().begin().await?;
            let revoked = apps::revoke_key(&mut tx, app, key, by.at).await?;
            audit::append(&mut tx, &by).await?;
            tx.commit().await?;
            Ok(revoked)
        })
        .await?;
    state.keys().forget();
    gone(revoked, "key")
}

fn gone(found: bool, what: &str) -> Result<StatusCode, Problem> {
    if found {
        Ok(StatusCode::NO_CONTENT)
    } else {
        Err(Problem::not_found(what))
    }
}

/// The webhook secrets of an app, retired ones included; never the secrets themselves.
#[utoipa::path(
    get, path = "/openapi/apps/{id}/webhook-secrets", operation_id = "listWebhookSecrets", tag = "apps", security(("key" = ["admin"])),
    params(("id" = String, Path, description = "App id")),
    responses((status = 200, body = Listed<SecretView>), crate::routes::Problems)
)]
pub(crate) async fn list_secrets(
    State(state): State<ApiState>,
    _caller: Authorized<Admin>,
    Path(id): Path<String>,
) -> Result<Json<Listed<SecretView>>, Problem> {
    let app = find(&state, &id).await?;
    let secrets = apps::list_webhook_secrets(&mut *state.store().reader().await?, app.id).await?;
    Ok(Json(Listed {
        items: secrets
            .into_iter()
            .map(|secret| SecretView::of(secret, false))
            .collect(),
    }))
}

/// Makes a webhook secret, shown in this answer only. Webhooks are signed with every live secret; two may be live.
#[utoipa::path(
    post, path = "/openapi/apps/{id}/webhook-secrets", operation_id = "createWebhookSecret", tag = "apps", security(("key" = ["admin"])),
    params(("id" = String, Path, description = "App id")),
    responses((status = 201, body = SecretView), crate::routes::SteerProblems)
)]
pub(crate) async fn create_secret(
    State(state): State<ApiState>,
    Authorized { caller, .. }: Authorized<Admin>,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let app = find(&state, &id).await?.id;
    let by = caller.did("webhook-secret.create", &app, state.store().now());
    let live = apps::list_webhook_secrets(&mut *state.store().reader().await?, app).await?;
    if live.iter().filter(|secret| secret.retired_at.is_none()).count() >= 2 {
        return Err(Problem::conflict(
            "webhook-secret.two-live",
            "two secrets are live already; retire the older one first",
        ));
    }
    let made = write_secret(&state, &by, app).await?;
    Ok((StatusCode::CREATED, Json(SecretView::of(made, true))).into_response())
}

async fn write_secret(state: &ApiState, by: &AuditEntry, app: AppId) -> Result<WebhookSecret, StoreError> {
    state
        .store()
        .transact(|| async {
            let mut tx = state.store().begin().await?;
            let made = apps::create_webhook_secret(&mut tx, app, by.at).await?;
            audit::append(&mut tx, by).await?;
            tx.commit().await?;
            Ok(made)
        })
        .await
}

/// Retires a webhook secret: it stops signing after 24 hours, or at once with `now=true`.
#[utoipa::path(
    delete, path = "/openapi/apps/{id}/webhook-secrets/{secretId}", operation_id = "retireWebhookSecret", tag = "apps", security(("key" = ["admin"])),
    params(
        ("id" = String, Path, description = "App id"),
        ("secretId" = String, Path, description = "Secret id"),
        ("now" = Option<bool>, Query, description = "Stop signing at once, because it has leaked")
    ),
    responses((status = 204, description = "Retired"), crate::routes::SteerProblems)
)]
pub(crate) async fn retire_secret(
    State(state): State<ApiState>,
    Authorized { caller, .. }: Authorized<Admin>,
    Path((id, secret)): Path<(String, String)>,
    mut query: QueryText,
) -> Result<StatusCode, Problem> {
    let at_once = query.boolean("now").unwrap_or(false);
    query.close()?;
    let app = find(&state, &id).await?.id;
    let secret: Uuid = secret.parse().map_err(|_| Problem::not_found("webhook secret"))?;
    let by = caller.did("webhook-secret.retire", &secret, state.store().now());
    let until = if at_once { by.at } else { by.at + ROTATION };
    let retired = state
        .store()
        .transact(|| async {
            let mut tx = state.store().begin().await?;
            let retired = apps::retire_webhook_secret(&mut tx, app, secret, until).await?;
            audit::append(&mut tx, &by).await?;
            tx.commit().await?;
            Ok(retired)
        })
        .await?;
    gone(retired, "webhook secret")
}
