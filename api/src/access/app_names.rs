use isocost_common::store::{
    Store, StoreError,
    apps::{self, App},
};
use parking_lot::Mutex;
use std::{collections::HashMap, time::Duration};
use tokio::time::Instant;

/// How long the list is believed: the longest until a changed limit counts.
const BELIEVED_FOR: Duration = Duration::from_secs(5);
/// A name that is missing is looked for again at this age, so that a flood of a wrong one is not a flood of queries.
const UNKNOWN_FOR: Duration = Duration::from_secs(1);

/// The apps by name, as they were at most some seconds ago. Apps are few, so they are read all at once.
#[derive(Default)]
pub(crate) struct AppNames {
    read: Mutex<Option<List>>,
}

struct List {
    apps: HashMap<String, App>,
    read_at: Instant,
}

impl AppNames {
    /// The app with this name.
    ///
    /// # Errors
    /// [`StoreError`] when the apps have to be read and the database does not answer.
    pub(crate) async fn find(&self, store: &Store, name: &str) -> Result<Option<App>, StoreError> {
        if let Some(list) = &*self.read.lock() {
            let app = list.apps.get(name);
            let believed_for = if app.is_some() { BELIEVED_FOR } else { UNKNOWN_FOR };
            if list.read_at.elapsed() < believed_for {
                return Ok(app.cloned());
            }
        }
        let read_at = Instant::now();
        let apps = apps::list(&mut *store.reader().await?).await?;
        let apps: HashMap<_, _> = apps.into_iter().map(|app| (app.name.clone(), app)).collect();
        let found = apps.get(name).cloned();
        *self.read.lock() = Some(List { apps, read_at });
        Ok(found)
    }
}
