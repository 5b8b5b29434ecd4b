//! What is published in return: answers, and messages that can never be accepted with the reason why.

use crate::{
    jobs::Submitted,
    problem::{Problem, ProblemBody},
};
use isocost_common::{
    broker::{Message, Publication, topology::Names},
    execution::limit_text,
    message::kind,
};

/// What became of a message.
pub(super) type Verdict = Result<Submitted, Problem>;

/// Header of answers and dead letters: the HTTP status that the same request would have had.
const STATUS: &str = "x-isocost-status";
/// Header of dead letters: the stable code of the reason.
const PROBLEM: &str = "x-isocost-problem";
/// Header of dead letters: the reason in words.
const DETAIL: &str = "x-isocost-problem-detail";
/// Header of dead letters: who had sent it. The property itself would be refused, since it is no longer true.
const USER_ID: &str = "x-isocost-user-id";
/// Carries a secret, so it is not kept.
pub(super) const AUTHORIZATION: &str = "authorization";
const PROBLEM_JSON: &str = "application/problem+json";
/// Longest reason in a header.
const MOST_DETAIL: usize = 1_000;
/// RabbitMQ's pseudo queues for answers. It delivers to them and reports them as unroutable all the same.
const DIRECT_REPLY_TO: &str = "amq.rabbitmq.reply-to";

/// A header by its name in any case.
pub(super) fn header_of<'a>(message: &'a Message, name: &str) -> Option<&'a str> {
    let mut headers = message.headers.iter();
    let found = headers.find(|(header, _)| header.eq_ignore_ascii_case(name));
    found.map(|(_, value)| value.as_str())
}

/// The answer, if one is wanted. None goes to a queue of the scheduler, whose reader would take it for something else.
pub(super) fn answer_to(names: &Names, message: &Message, verdict: &Verdict) -> Option<Publication> {
    let queue = message.reply_to.as_deref().filter(|queue| !queue.is_empty())?;
    if names.owns(queue) {
        return None;
    }
    let mut answer = match verdict {
        Ok(submitted) => Message::json(kind::SUBMISSION_ANSWER, submitted),
        Err(problem) => Message::json(kind::SUBMISSION_ANSWER, &body_of(problem, message)),
    };
    if verdict.is_err() {
        answer.content_type = Some(PROBLEM_JSON.into());
    }
    answer
        .headers
        .insert(STATUS.into(), status_of(verdict).to_string());
    answer.correlation_id.clone_from(&message.correlation_id);
    Some(Publication {
        exchange: String::new(),
        routing_key: queue.to_owned(),
        mandatory: !queue.starts_with(DIRECT_REPLY_TO),
        message: answer,
    })
}

/// The same message for the queue of dead letters. It never expires there and asks for no answer any more.
pub(super) fn dead_letter(names: &Names, message: &Message, problem: &Problem) -> Publication {
    let mut dead = Message {
        expiration_ms: None,
        reply_to: None,
        user_id: None,
        ..message.clone()
    };
    dead.headers
        .retain(|name, _| !name.eq_ignore_ascii_case(AUTHORIZATION));
    let reason = [
        (STATUS, problem.status().as_u16().to_string()),
        (PROBLEM, problem.code().to_owned()),
        (DETAIL, limit_text(problem.detail(), MOST_DETAIL).to_string()),
    ];
    dead.headers
        .extend(reason.map(|(name, text)| (name.to_owned(), text)));
    if let Some(user) = &message.user_id {
        dead.headers.insert(USER_ID.into(), user.clone());
    }
    Publication {
        exchange: String::new(),
        routing_key: names.dead_submissions_queue(),
        mandatory: true,
        message: dead,
    }
}

fn status_of(verdict: &Verdict) -> u16 {
    match verdict {
        Ok(submitted) if submitted.replayed => 200,
        Ok(_) => 202,
        Err(problem) => problem.status().as_u16(),
    }
}

/// The message id stands for the id of the request: it is what the log has.
fn body_of(problem: &Problem, message: &Message) -> ProblemBody {
    problem.body("", &message.message_id)
}
