use super::letter::{AUTHORIZATION, header_of};
use crate::{
    access::identify,
    problem::{Kind, Problem},
    state::ApiState,
};
use isocost_common::{
    broker::Message,
    store::apps::{App, Scope},
};

/// The app that a message is for: by the API key in its header `authorization`, else by the user who published it. The
/// broker has checked that name against the login, and the operator who named a RabbitMQ user like an app meant it.
///
/// # Errors
/// [`Problem`] 401 or 403; 503 when it has to be looked up and the database does not answer.
pub(super) async fn app_of(state: &ApiState, message: &Message) -> Result<App, Problem> {
    if let Some(key) = header_of(message, AUTHORIZATION) {
        let caller = identify(state, Some(key)).await?;
        caller.must_have(Scope::Submit)?;
        return Ok(caller.app_row().clone());
    }
    let user = message.user_id.as_deref().filter(|user| !user.is_empty());
    let Some(user) = user else {
        return Err(Problem::new(
            Kind::Unauthorized,
            "sender.missing",
            "set the property user_id to the RabbitMQ user, or send an API key as the header `authorization: Bearer <key>`",
        ));
    };
    let app = state.app_names().find(state.store(), user).await?;
    app.ok_or_else(|| {
        let shown: String = user.chars().take(64).collect();
        Problem::new(
            Kind::Unauthorized,
            "sender.unknown",
            format!("no app is named `{shown}` like the RabbitMQ user; create one, or send an API key in the header `authorization`"),
        )
    })
}
