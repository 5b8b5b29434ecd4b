use super::{Listed, find, gone};
use crate::{
    access::{Admin, Authorized},
    input::{Findings, JsonBody, Object, Value},
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
        apps::{self, ApiKey, NewKey, Scope},
        audit,
    },
    time::EpochMillis,
};
use serde::Serialize;
use utoipa::ToSchema;

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
    // Each is read before the first wrong one counts, so that all are named.
    let scopes: Vec<_> = items.iter().map(|item| item.choice(&choices, findings)).collect();
    scopes.into_iter().collect()
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
