//! The data folder and the admin key in it.

use super::Error;
use isocost_common::store::{Store, apps};
use std::{
    fs::{self, DirBuilder, OpenOptions},
    io::{ErrorKind, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

const FILE: &str = "admin.key";

/// The key, and where it is written down.
pub(super) struct AdminKey {
    pub(super) text: String,
    pub(super) file: PathBuf,
    pub(super) is_new: bool,
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

/// The key of the file if it still works, else a new one. A crash between making a key and writing it down loses that
/// key, so a missing file means a new key, never a locked-out owner.
pub(super) async fn ensure(store: &Store, data: &Path) -> Result<AdminKey, Error> {
    let file = data.join(FILE);
    let first = apps::ensure_first_app(store).await?;
    if let Some(text) = first.admin_key {
        write(&file, &text)?;
        return Ok(AdminKey {
            text,
            file,
            is_new: true,
        });
    }
    if let Some(text) = read(&file)? {
        let live = apps::key_with_app(&mut *store.reader().await?, &apps::key_hash(&text)).await?;
        if live.is_some_and(|(key, _)| key.is_live(store.now())) {
            return Ok(AdminKey {
                text,
                file,
                is_new: false,
            });
        }
    }
    let now = store.now();
    let issued = store
        .transact(|| async {
            let mut tx = store.begin().await?;
            let admin = apps::NewKey {
                app: first.app,
                name: "admin key made because the file was missing or its key revoked".into(),
                scopes: apps::Scope::ALL.to_vec(),
                expires_at: None,
            };
            let issued = apps::create_key(&mut tx, admin, now).await?;
            tx.commit().await?;
            Ok(issued)
        })
        .await?;
    write(&file, &issued.text)?;
    Ok(AdminKey {
        text: issued.text,
        file,
        is_new: true,
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

/// Writes beside the file and renames, so that a crash leaves the old file or the new one.
fn write(file: &Path, text: &str) -> Result<(), Error> {
    let beside = file.with_extension("key.new");
    let written = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
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
