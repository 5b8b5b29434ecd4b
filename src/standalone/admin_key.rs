//! The data folder and the admin key in it.

use super::Error;
use isocost_common::{
    id::{ApiKeyId, AppId},
    store::{Store, StoreError, Tx, apps, settings},
    time::EpochMillis,
};
use serde_json::json;
use std::{
    fs::{self, DirBuilder, OpenOptions, Permissions},
    io::{ErrorKind, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};
use tracing::info;

const FILE: &str = "admin.key";
/// The setting that names the key of the file.
const WRITTEN_KEY: &str = "standalone.admin_key";

/// The key, and where it is written down.
pub(super) struct AdminKey {
    pub(super) text: String,
    pub(super) file: PathBuf,
    pub(super) is_new: bool,
    /// What webhooks are signed with, when the first app was made just now.
    pub(super) webhook_secret: Option<String>,
    /// Others than the owner could read or write the file, and cannot any more.
    pub(super) file_was_open: bool,
}

/// Creates the folder for its owner only, unless it exists. Returns its absolute path: what is printed of it works in any
/// folder.
pub(super) fn create_folder(data: &Path) -> Result<PathBuf, Error> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(data)
        .and_then(|()| data.canonicalize())
        .map_err(|source| Error::Folder {
            path: data.into(),
            source,
        })
}

/// The key of the file if it still works, else a new one, in whose place the one before is revoked: whoever took the file
/// away has no use of it. A crash between making a key and writing it down loses that key, so a missing file means a new
/// key, never a locked-out owner.
pub(super) async fn ensure(store: &Store, data: &Path) -> Result<AdminKey, Error> {
    let file = data.join(FILE);
    let first = apps::ensure_first_app(store).await?;
    if let Some(text) = first.admin_key {
        write(&file, &text)?;
        return Ok(AdminKey {
            text,
            file,
            is_new: true,
            webhook_secret: first.webhook_secret,
            file_was_open: false,
        });
    }
    if let Some(text) = read(&file)? {
        let live = apps::key_with_app(&mut *store.reader().await?, &apps::key_hash(&text)).await?;
        if live.is_some_and(|(key, _)| key.is_live(store.now())) {
            let file_was_open = close_to_others(&file)?;
            return Ok(AdminKey {
                text,
                file,
                is_new: false,
                webhook_secret: None,
                file_was_open,
            });
        }
    }
    let now = store.now();
    let issued = store
        .transact(|| async {
            let mut tx = store.begin().await?;
            revoke_former(&mut tx, first.app, now).await?;
            let admin = apps::NewKey {
                app: first.app,
                name: "admin key made because the file was missing or its key revoked".into(),
                scopes: apps::Scope::ALL.to_vec(),
                expires_at: None,
            };
            let issued = apps::create_key(&mut tx, admin, now).await?;
            let (dialect, id) = (tx.dialect(), json!(issued.key.id).to_string());
            settings::put(&mut tx, dialect, WRITTEN_KEY, &id, now).await?;
            tx.commit().await?;
            Ok(issued)
        })
        .await?;
    write(&file, &issued.text)?;
    Ok(AdminKey {
        text: issued.text,
        file,
        is_new: true,
        webhook_secret: None,
        file_was_open: false,
    })
}

/// Revokes the key that the file had: the one noted, or before any was noted the one that came with the first app.
async fn revoke_former(tx: &mut Tx, app: AppId, now: EpochMillis) -> Result<(), StoreError> {
    let settings = settings::all(tx).await?;
    let noted: Option<ApiKeyId> = settings
        .get(WRITTEN_KEY)
        .and_then(|text| serde_json::from_str(text).ok());
    let created_at = apps::get(tx, app).await?.map(|app| app.created_at);
    let keys = apps::list_keys(tx, app).await?;
    let former = keys.iter().filter(|key| match noted {
        Some(noted) => key.id == noted,
        None => Some(key.created_at) == created_at,
    });
    for key in former {
        apps::revoke_key(tx, app, key.id, now).await?;
        info!(key.id = %key.id, "revoked the admin key that the missing file had held");
    }
    Ok(())
}

/// Takes every right of group and others from the file. True when there were any.
fn close_to_others(file: &Path) -> Result<bool, Error> {
    let closed = fs::metadata(file).and_then(|metadata| {
        let open = metadata.permissions().mode() & 0o077 != 0;
        if open {
            fs::set_permissions(file, Permissions::from_mode(0o600))?;
        }
        Ok(open)
    });
    closed.map_err(|source| Error::Folder {
        path: file.into(),
        source,
    })
}

fn read(file: &Path) -> Result<Option<String>, Error> {
    match fs::read_to_string(file) {
        Ok(text) => Ok(Some(text.trim().to_owned())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::Folder {
            path: file.into(),
            source,
        }),
    }
}

/// Writes beside the file and renames, so that a crash leaves the old file or the new one. What a crash left beside it is
/// removed first: it would keep its mode.
fn write(file: &Path, text: &str) -> Result<(), Error> {
    let beside = file.with_extension("key.new");
    let _ = fs::remove_file(&beside);
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&beside)
        .and_then(|mut new| {
            writeln!(new, "{text}")?;
            new.sync_all()
        })
        .and_then(|()| fs::rename(&beside, file));
    written.map_err(|source| Error::Folder {
        path: file.into(),
        source,
    })
}
