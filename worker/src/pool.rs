//! The threads that handlers run on. The worker's own tasks (heartbeats, reports, requests) stay on the runtime that
//! called it: a handler that blocks its thread then keeps that thread, and neither the worker's lease nor anybody's
//! report waits for it.

use crate::Error;
use tokio::runtime::{Builder, Handle, Runtime};

/// Threads of their own for handlers. They are left behind, not waited for, when it is dropped: by then every handler
/// has ended, or the process is about to exit.
pub(crate) struct HandlerPool {
    handle: Handle,
    runtime: Option<Runtime>,
}

impl HandlerPool {
    /// Starts as many threads as there are processors, and at least two, so that one blocked thread does not stop all.
    pub(crate) fn start() -> Result<Self, Error> {
        let processors = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
        let runtime = Builder::new_multi_thread()
            .worker_threads(processors.max(2))
            .thread_name("handler")
            .enable_all()
            .build()
            .map_err(Error::Threads)?;
        Ok(Self {
            handle: runtime.handle().clone(),
            runtime: Some(runtime),
        })
    }

    /// For spawning on it.
    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for HandlerPool {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
