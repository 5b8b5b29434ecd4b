//! `/openapi/jobs`.

mod batch;
mod read;
mod submit;
mod view;

pub use batch::{__path_submit_batch, submit_batch};
pub use read::{__path_get, __path_list, __path_statuses, get, list, statuses};
pub use submit::{__path_submit, __path_validate, submit, validate};
pub use view::{ExecutionSummary, JobView};
