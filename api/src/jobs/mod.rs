//! `/openapi/jobs`.

mod batch;
mod bulk;
mod read;
mod replay;
mod steer;
mod submit;
mod view;

pub(crate) use batch::{__path_submit_batch, submit_batch};
pub(crate) use bulk::{__path_bulk, bulk};
pub(crate) use read::{__path_get, __path_list, __path_statuses, get, list, statuses};
pub(crate) use steer::{
    __path_cancel, __path_delete, __path_patch, __path_pause, __path_resume, __path_trigger, Triggered,
    cancel, delete, follow_up, patch, pause, resume, trigger,
};
pub(crate) use submit::{
    __path_submit, __path_validate, KeyBeside, Prepared, Submitted, store, submit, validate,
};
