use super::{Listed, find, gone};
use crate::{
    access::{Admin, Authorized},
    input::QueryText,
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
        apps::{self, WebhookSecret},
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
