//! One process per data folder: the embedded database, the in-process broker and the recovery at start all rest on it.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{self, Read, Seek, Write},
    path::{Path, PathBuf},
    process,
};

/// The file in the data folder that is locked. It stays when the process ends; only the lock counts.
const FILE_NAME: &str = "isocost.lock";

/// The exclusive right to a data folder. Dropping it, or the end of the process however it comes, gives it up.
#[derive(Debug)]
pub struct FolderLock {
    /// Holds the lock as long as it is open.
    _file: File,
    path: PathBuf,
}

/// The folder cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum FolderLockError {
    /// Another process has it.
    #[error(
        "the data folder `{}` is in use by another Isocost process{}: stop that one, or choose another folder",
        .folder.display(), describe_owner(.owner)
    )]
    InUse {
        /// The folder.
        folder: PathBuf,
        /// The process that has it, as written in the file; none when that cannot be read.
        owner: Option<u32>,
    },
    /// It cannot be made or written.
    #[error("the data folder `{}` cannot be used: it must be a folder that this user may write", .folder.display())]
    Unusable {
        /// The folder.
        folder: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

fn describe_owner(owner: &Option<u32>) -> String {
    owner.map(|pid| format!(" (pid {pid})")).unwrap_or_default()
}

impl FolderLock {
    /// Makes the folder if it is missing, and takes it, without waiting.
    ///
    /// # Errors
    /// [`FolderLockError`] when another process has it, or it cannot be written.
    pub fn take(folder: &Path) -> Result<Self, FolderLockError> {
        let unusable = |source| FolderLockError::Unusable {
            folder: folder.to_owned(),
            source,
        };
        std::fs::create_dir_all(folder).map_err(unusable)?;
        let path = folder.join(FILE_NAME);
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(unusable)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(FolderLockError::InUse {
                    folder: folder.to_owned(),
                    owner: read_owner(&mut file),
                });
            }
            Err(TryLockError::Error(source)) => return Err(unusable(source)),
        }
        write_owner(&mut file).map_err(unusable)?;
        Ok(Self { _file: file, path })
    }

    /// The locked file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn read_owner(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

fn write_owner(file: &mut File) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", process::id())?;
    file.sync_data()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_had_by_one_at_a_time() -> io::Result<()> {
        let root = tempfile::tempdir()?;
        let folder = root.path().join("made/on/demand");
        let lock = FolderLock::take(&folder).expect("it is free");
        // Within one process too: the lock belongs to the open file.
        let refused = FolderLock::take(&folder).expect_err("it is taken");
        let message = refused.to_string();
        assert!(message.contains(&format!("pid {}", process::id())), "{message}");
        assert!(
            message.contains("made/on/demand") && message.contains("another folder"),
            "{message}"
        );
        drop(lock);
        FolderLock::take(&folder).expect("it is free again");
        Ok(())
    }

    #[test]
    fn what_a_dead_process_left_behind_does_not_matter() -> io::Result<()> {
        let root = tempfile::tempdir()?;
        std::fs::write(
            root.path().join(FILE_NAME),
            "4194304999 and much more than a number\n",
        )?;
        let lock = FolderLock::take(root.path()).expect("nobody has it");
        assert_eq!(
            std::fs::read_to_string(lock.path())?,
            format!("{}\n", process::id())
        );
        Ok(())
    }

    #[test]
    fn a_file_in_the_place_of_the_folder_is_named() -> io::Result<()> {
        let root = tempfile::tempdir()?;
        let file = root.path().join("data");
        std::fs::write(&file, "")?;
        let refused = FolderLock::take(&file).expect_err("it is no folder");
        assert!(matches!(refused, FolderLockError::Unusable { .. }), "{refused}");
        Ok(())
    }
}
