//! `app`, `api_key`, `webhook_secret`: tenants, who may act for them, and what their webhooks are signed with.
//!
//! Of an API key only the SHA-256 of the whole text is stored; the text itself is shown once, when it is made.

use super::{Connection, Row, Store, StoreError, jobs::hex};
use crate::{
    id::{ApiKeyId, AppId},
    time::EpochMillis,
};
use base64::{Engine, prelude::BASE64_STANDARD, prelude::BASE64_URL_SAFE_NO_PAD};
use sha2::{Digest, Sha256};
use std::fmt;

/// Name of the app that the first start makes.
pub const FIRST_APP: &str = "default";

/// What a key allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// Submit jobs.
    Submit,
    /// Look at jobs, executions, workers and callbacks.
    Read,
    /// Steer jobs and workers; includes [`Scope::Read`].
    Manage,
    /// Settings, apps and keys; includes everything.
    Admin,
}

impl Scope {
    /// Every scope.
    pub const ALL: [Self; 4] = [Self::Submit, Self::Read, Self::Manage, Self::Admin];

    /// The word of the API.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Submit => "submit",
            Self::Read => "read",
            Self::Manage => "manage",
            Self::Admin => "admin",
        }
    }

    /// The scope with this word of the API.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scope| scope.name() == name)
    }

    /// True when a key that carries `self` may do what needs `needed`.
    #[must_use]
    pub fn includes(self, needed: Self) -> bool {
        self == needed || self == Self::Admin || (self == Self::Manage && needed == Self::Read)
    }
}

/// A tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct App {
    /// The app.
    pub id: AppId,
    /// Unique, for people.
    pub name: String,
    /// API requests a second; none for no limit.
    pub rate_limit_per_second: Option<u32>,
    /// Jobs and executions that may wait at once; none for no limit.
    pub max_pending_jobs: Option<i64>,
    /// Executions that may run at once; the others wait. None for no limit.
    pub max_running_executions: Option<i64>,
    /// When it was made.
    pub created_at: EpochMillis,
}

/// An API key, without its secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiKey {
    /// The key.
    pub id: ApiKeyId,
    /// Its app.
    pub app: AppId,
    /// For people.
    pub name: String,
    /// What it allows.
    pub scopes: Vec<Scope>,
    /// When it was made.
    pub created_at: EpochMillis,
    /// Not valid from this instant on.
    pub expires_at: Option<EpochMillis>,
    /// When it was revoked.
    pub revoked_at: Option<EpochMillis>,
}

impl ApiKey {
    /// True when the key may be used at `now`.
    #[must_use]
    pub fn is_live(&self, now: EpochMillis) -> bool {
        self.revoked_at.is_none() && self.expires_at.is_none_or(|expiry| now < expiry)
    }

    /// True when one of its scopes allows what needs `scope`.
    #[must_use]
    pub fn allows(&self, scope: Scope) -> bool {
        self.scopes.iter().any(|held| held.includes(scope))
    }
}

/// A key as it was just made: the only moment its text is known.
#[derive(Clone, PartialEq, Eq)]
pub struct IssuedKey {
    /// The key.
    pub key: ApiKey,
    /// The text to send as `Authorization: Bearer …`.
    pub text: String,
}

impl fmt::Debug for IssuedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IssuedKey")
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

/// What to call a key and what it may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewKey {
    /// Its app.
    pub app: AppId,
    /// For people.
    pub name: String,
    /// What it allows.
    pub scopes: Vec<Scope>,
    /// Not valid from this instant on.
    pub expires_at: Option<EpochMillis>,
}

/// A secret that webhooks of an app are signed with.
#[derive(Clone, PartialEq, Eq)]
pub struct WebhookSecret {
    /// Names it in the API.
    pub id: uuid::Uuid,
    /// Its app.
    pub app: AppId,
    /// `whsec_` and 24 random bytes in base64.
    pub secret: String,
    /// When it was made.
    pub created_at: EpochMillis,
    /// When it stopped being used for signing.
    pub retired_at: Option<EpochMillis>,
}

impl fmt::Debug for WebhookSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhookSecret")
            .field("id", &self.id)
            .field("app", &self.app)
            .finish_non_exhaustive()
    }
}

/// What [`ensure_first_app`] found or made.
#[derive(Clone, PartialEq, Eq)]
pub struct FirstApp {
    /// The app named [`FIRST_APP`].
    pub app: AppId,
    /// The text of the admin key, when it was made just now.
    pub admin_key: Option<String>,
    /// What its webhooks are signed with, the only time it is seen: when the app was just made.
    pub webhook_secret: Option<String>,
}

/// The hash under which a key's text is stored. SHA-256, hex.
#[must_use]
pub fn key_hash(text: &str) -> String {
    hex(&Sha256::digest(text))
}

/// The app named [`FIRST_APP`], made with an admin key and a webhook secret when there is no app at all.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn ensure_first_app(store: &Store) -> Result<FirstApp, StoreError> {
    let now = store.now();
    let make = || async {
        let mut tx = store.begin().await?;
        let made = first_app(&mut tx, now).await?;
        tx.commit().await?;
        Ok(made)
    };
    match store.transact(make).await {
        // Another process made it at the same moment.
        Err(StoreError::Duplicate(_)) => store.transact(make).await,
        other => other,
    }
}

async fn first_app(connection: &mut Connection, now: EpochMillis) -> Result<FirstApp, StoreError> {
    if let Some(app) = list(connection).await?.into_iter().next() {
        return Ok(FirstApp {
            app: app.id,
            admin_key: None,
            webhook_secret: None,
        });
    }
    let app = App {
        id: AppId::generate(),
        name: FIRST_APP.into(),
        rate_limit_per_second: None,
        max_pending_jobs: None,
        max_running_executions: None,
        created_at: now,
    };
    insert(connection, &app).await?;
    let admin = NewKey {
        app: app.id,
        name: "first admin key".into(),
        scopes: Scope::ALL.to_vec(),
        expires_at: None,
    };
    let issued = create_key(connection, admin, now).await?;
    let signing = create_webhook_secret(connection, app.id, now).await?;
    Ok(FirstApp {
        app: app.id,
        admin_key: Some(issued.text),
        webhook_secret: Some(signing.secret),
    })
}

const APP_COLUMNS: &str = "app.id as app_id, app.name as app_name, app.rate_limit_per_second, app.max_pending_jobs, \
     app.max_running_executions, app.created_at as app_created_at";

/// Stores an app.
///
/// # Errors
/// [`StoreError::Duplicate`] when the name is taken.
pub async fn insert(connection: &mut Connection, app: &App) -> Result<(), StoreError> {
    sqlx::query(
        "insert into app (id, name, rate_limit_per_second, max_pending_jobs, max_running_executions, created_at)
         values (?, ?, ?, ?, ?, ?)",
    )
    .bind(app.id.to_string())
    .bind(app.name.clone())
    .bind(app.rate_limit_per_second.map(i64::from))
    .bind(app.max_pending_jobs)
    .bind(app.max_running_executions)
    .bind(app.created_at.0)
    .execute(connection)
    .await?;
    Ok(())
}

/// Changes the limits of an app; false when there is no such app.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn set_limits(connection: &mut Connection, app: &App) -> Result<bool, StoreError> {
    let changed = sqlx::query(
        "update app set rate_limit_per_second = ?, max_pending_jobs = ?, max_running_executions = ? where id = ?",
    )
    .bind(app.rate_limit_per_second.map(i64::from))
    .bind(app.max_pending_jobs)
    .bind(app.max_running_executions)
    .bind(app.id.to_string())
    .execute(connection)
    .await?;
    Ok(changed.rows_affected() > 0)
}

/// Every app, oldest first. Apps are few.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn list(connection: &mut Connection) -> Result<Vec<App>, StoreError> {
    let sql = format!("select {APP_COLUMNS} from app order by created_at, id");
    let rows = sqlx::query(sqlx::AssertSqlSafe(sql))
        .fetch_all(connection)
        .await?;
    rows.iter().map(|row| read_app(&Row(row))).collect()
}

/// One app.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn get(connection: &mut Connection, id: AppId) -> Result<Option<App>, StoreError> {
    let sql = format!("select {APP_COLUMNS} from app where id = ?");
    let row = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(id.to_string())
        .fetch_optional(connection)
        .await?;
    row.as_ref().map(|row| read_app(&Row(row))).transpose()
}

fn read_app(row: &Row<'_>) -> Result<App, StoreError> {
    let limit = row.opt_int("rate_limit_per_second")?;
    Ok(App {
        id: row.parsed("app_id")?,
        name: row.text("app_name")?,
        rate_limit_per_second: limit.and_then(|limit| u32::try_from(limit).ok()),
        max_pending_jobs: row.opt_int("max_pending_jobs")?,
        max_running_executions: row.opt_int("max_running_executions")?,
        created_at: row.instant("app_created_at")?,
    })
}

const KEY_COLUMNS: &str = "api_key.id as key_id, api_key.app_id as key_app_id, api_key.name as key_name, api_key.scopes, \
     api_key.created_at as key_created_at, api_key.expires_at, api_key.revoked_at";

/// Makes a key: `isk_`, its id, and 32 random bytes.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn create_key(
    connection: &mut Connection,
    new: NewKey,
    now: EpochMillis,
) -> Result<IssuedKey, StoreError> {
    let key = ApiKey {
        id: ApiKeyId::generate(),
        app: new.app,
        name: new.name,
        scopes: new.scopes,
        created_at: now,
        expires_at: new.expires_at,
        revoked_at: None,
    };
    let secret = BASE64_URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>());
    let text = format!("isk_{}_{secret}", key.id.as_uuid().simple());
    let scopes: Vec<_> = key.scopes.iter().map(|scope| scope.name()).collect();
    sqlx::query(
        "insert into api_key (id, app_id, name, secret_sha256, scopes, created_at, expires_at)
         values (?, ?, ?, ?, ?, ?, ?)",
    )
    .bind(key.id.to_string())
    .bind(key.app.to_string())
    .bind(key.name.clone())
    .bind(key_hash(&text))
    .bind(scopes.join(","))
    .bind(key.created_at.0)
    .bind(key.expires_at.map(|at| at.0))
    .execute(connection)
    .await?;
    Ok(IssuedKey { key, text })
}

/// The keys of an app, oldest first, revoked ones included.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn list_keys(connection: &mut Connection, app: AppId) -> Result<Vec<ApiKey>, StoreError> {
    let sql = format!("select {KEY_COLUMNS} from api_key where app_id = ? order by id");
    let rows = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(app.to_string())
        .fetch_all(connection)
        .await?;
    rows.iter().map(|row| read_key(&Row(row))).collect()
}

/// Revokes a key; false when the app has no such key. Revoking twice keeps the first instant.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn revoke_key(
    connection: &mut Connection,
    app: AppId,
    id: ApiKeyId,
    now: EpochMillis,
) -> Result<bool, StoreError> {
    let changed =
        sqlx::query("update api_key set revoked_at = coalesce(revoked_at, ?) where app_id = ? and id = ?")
            .bind(now.0)
            .bind(app.to_string())
            .bind(id.to_string())
            .execute(connection)
            .await?;
    Ok(changed.rows_affected() > 0)
}

/// The key with this hash and its app, whether still valid or not.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn key_with_app(
    connection: &mut Connection,
    hash: &str,
) -> Result<Option<(ApiKey, App)>, StoreError> {
    let sql = format!(
        "select {KEY_COLUMNS}, {APP_COLUMNS} from api_key join app on app.id = api_key.app_id where secret_sha256 = ?"
    );
    let row = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(hash)
        .fetch_optional(connection)
        .await?;
    row.as_ref()
        .map(|row| Ok((read_key(&Row(row))?, read_app(&Row(row))?)))
        .transpose()
}

fn read_key(row: &Row<'_>) -> Result<ApiKey, StoreError> {
    Ok(ApiKey {
        id: row.parsed("key_id")?,
        app: row.parsed("key_app_id")?,
        name: row.text("key_name")?,
        // A scope that a newer version wrote is unknown here and allows nothing.
        scopes: row
            .text("scopes")?
            .split(',')
            .filter_map(Scope::from_name)
            .collect(),
        created_at: row.instant("key_created_at")?,
        expires_at: row.opt_instant("expires_at")?,
        revoked_at: row.opt_instant("revoked_at")?,
    })
}

/// Makes a webhook secret. Several may be live at once, for rotation: webhooks are signed with each.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn create_webhook_secret(
    connection: &mut Connection,
    app: AppId,
    now: EpochMillis,
) -> Result<WebhookSecret, StoreError> {
    let made = WebhookSecret {
        id: uuid::Uuid::now_v7(),
        app,
        secret: format!("whsec_{}", BASE64_STANDARD.encode(rand::random::<[u8; 24]>())),
        created_at: now,
        retired_at: None,
    };
    sqlx::query("insert into webhook_secret (id, app_id, secret, created_at) values (?, ?, ?, ?)")
        .bind(made.id.to_string())
        .bind(app.to_string())
        .bind(made.secret.clone())
        .bind(now.0)
        .execute(connection)
        .await?;
    Ok(made)
}

/// The webhook secrets of an app, oldest first, retired ones included.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn list_webhook_secrets(
    connection: &mut Connection,
    app: AppId,
) -> Result<Vec<WebhookSecret>, StoreError> {
    let rows = sqlx::query(
        "select id, app_id, secret, created_at, retired_at from webhook_secret where app_id = ? order by id",
    )
    .bind(app.to_string())
    .fetch_all(connection)
    .await?;
    let read = |row| {
        let row = Row(row);
        Ok(WebhookSecret {
            id: row.parsed("id")?,
            app: row.parsed("app_id")?,
            secret: row.text("secret")?,
            created_at: row.instant("created_at")?,
            retired_at: row.opt_instant("retired_at")?,
        })
    };
    rows.iter().map(read).collect()
}

/// Stops a secret from signing; false when the app has no such secret.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn retire_webhook_secret(
    connection: &mut Connection,
    app: AppId,
    id: uuid::Uuid,
    now: EpochMillis,
) -> Result<bool, StoreError> {
    let changed = sqlx::query(
        "update webhook_secret set retired_at = coalesce(retired_at, ?) where app_id = ? and id = ?",
    )
    .bind(now.0)
    .bind(app.to_string())
    .bind(id.to_string())
    .execute(connection)
    .await?;
    Ok(changed.rows_affected() > 0)
}
