//! `/openapi/executions`.

mod read;
mod steer;
mod view;

pub(crate) use read::{__path_get, __path_list, __path_logs, __path_of_job, get, list, logs, of_job};
pub(crate) use steer::{__path_cancel, __path_retry, cancel, retry};
