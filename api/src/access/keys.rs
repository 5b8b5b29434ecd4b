use isocost_common::store::{
    Store, StoreError,
    apps::{self, ApiKey, App},
};
use parking_lot::Mutex;
use std::{collections::HashMap, sync::Arc, time::Duration};
use tokio::time::Instant;

/// How long a looked-up key is believed: the longest that a revoked one still works at another process.
const BELIEVED_FOR: Duration = Duration::from_secs(5);
/// How long an unknown key stays unknown, so that a flood of one wrong key is not a flood of queries.
const UNKNOWN_FOR: Duration = Duration::from_secs(1);
/// Keys remembered at once, wrong ones included.
const MOST: usize = 10_000;

/// Keys that were looked up lately.
#[derive(Default)]
pub(crate) struct KeyCache {
    entries: Mutex<HashMap<String, Entry>>,
}

struct Entry {
    key: Option<Arc<(ApiKey, App)>>,
    until: Instant,
}

impl KeyCache {
    /// The key with this text, as it was at most some seconds ago.
    ///
    /// # Errors
    /// [`StoreError`] when it has to be looked up and the database does not answer.
    pub(crate) async fn find(
        &self,
        store: &Store,
        text: &str,
    ) -> Result<Option<Arc<(ApiKey, App)>>, StoreError> {
        let hash = apps::key_hash(text);
        let now = Instant::now();
        if let Some(entry) = self.entries.lock().get(&hash)
            && now < entry.until
        {
            return Ok(entry.key.clone());
        }
        let mut connection = store.reader().await?;
        let key = apps::key_with_app(&mut connection, &hash).await?.map(Arc::new);
        let believed_for = if key.is_some() { BELIEVED_FOR } else { UNKNOWN_FOR };
        let entry = Entry {
            key: key.clone(),
            until: now + believed_for,
        };
        let mut entries = self.entries.lock();
        if entries.len() >= MOST {
            entries.retain(|_, entry| now < entry.until);
        }
        if entries.len() < MOST {
            entries.insert(hash, entry);
        }
        Ok(key)
    }

    /// Forgets everything: a key or a limit was changed.
    pub(crate) fn forget(&self) {
        self.entries.lock().clear();
    }
}
