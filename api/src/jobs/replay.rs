//! A submission that is sent again is judged by the clock of its first arrival. What was in order then, such as a window
//! that is over by now, is answered as the job it made, and not as a fault.

use super::submit::{KeyBeside, Prepared};
use crate::{problem::Problem, state::ApiState};
use isocost_common::{id::AppId, store::submission};
use serde::Deserialize;
use serde_json::value::RawValue;

impl Prepared {
    /// Reads and checks a body. One that is not in order now is looked up by its key.
    ///
    /// # Errors
    /// [`Problem`] with everything that is wrong; or the database is away, and it is not known whether this is a replay.
    pub(crate) async fn read(
        state: &ApiState,
        app: AppId,
        body: &RawValue,
        beside: KeyBeside,
    ) -> Result<Self, Problem> {
        let problem = match Self::read_at(state, app, body, beside.clone(), state.store().now()) {
            Ok(prepared) => return Ok(prepared),
            Err(problem) => problem,
        };
        let Some(key) = key_of(body, &beside) else {
            return Err(problem);
        };
        let mut reader = state.store().reader().await?;
        match submission::accepted_at(&mut reader, app, &key).await? {
            Some(accepted) => Self::read_at(state, app, body, beside, accepted).map_err(|_| problem),
            None => Err(problem),
        }
    }
}

/// The key of a body that may be wrong in anything.
fn key_of(body: &RawValue, beside: &KeyBeside) -> Option<String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Keyed {
        client_request_id: Option<String>,
    }
    let in_body = serde_json::from_str(body.get()).ok();
    let in_body = in_body.and_then(|keyed: Keyed| keyed.client_request_id);
    in_body.or_else(|| match beside {
        KeyBeside::Nothing => None,
        KeyBeside::Header(key) | KeyBeside::MessageId(key) => Some(key.clone()),
    })
}
