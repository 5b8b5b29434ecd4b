//! Ports that nobody else takes.

use parking_lot::Mutex;
use std::{collections::HashSet, net::TcpListener};

/// Handed out by this process before.
static TAKEN: Mutex<Option<HashSet<u16>>> = Mutex::new(None);

/// A free TCP port on loopback. It lies below the range that the kernel gives to outgoing connections, so that it is
/// still free when a killed program starts again, however many connections the tests make in between.
///
/// # Panics
/// When a thousand attempts find none.
#[must_use]
pub fn free_port() -> u16 {
    for _ in 0..1_000 {
        let port = rand::random_range(10_000..20_000);
        let is_new = TAKEN.lock().get_or_insert_default().insert(port);
        if is_new && TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no free port between 10000 and 20000");
}
