//! The pages that the `type` of every problem leads to.

use crate::problem::{Kind, Problem};
use axum::{extract::Path, response::Html};

/// Says what a kind of problem means and what to do.
#[utoipa::path(
    get, path = "/problems/{name}", operation_id = "getProblemPage", tag = "problems", security(()),
    params(("name" = String, Path, description = "The last part of a problem's `type`")),
    responses((status = 200, body = String, content_type = "text/html"), (status = 404, description = "No such kind"))
)]
pub(crate) async fn page(Path(name): Path<String>) -> Result<Html<String>, Problem> {
    let kind = Kind::ALL
        .into_iter()
        .find(|kind| kind.name() == name)
        .ok_or_else(|| Problem::not_found("kind of problem"))?;
    let (title, status) = (kind.title(), kind.status().as_u16());
    let advice = advice(kind);
    Ok(Html(format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>{title}</title>\
         <body><h1>{title}</h1><p>HTTP status {status}, type <code>/problems/{name}</code>.</p><p>{advice}</p></body></html>"
    )))
}

const fn advice(kind: Kind) -> &'static str {
    match kind {
        Kind::InvalidRequest => {
            "The member <code>errors</code> names every field or parameter that is wrong, by JSON pointer, with what \
             would be right. Nothing was changed. Correct the request and send it again."
        }
        Kind::Unauthorized => {
            "Send <code>Authorization: Bearer &lt;key&gt;</code> with a key that is neither expired nor revoked."
        }
        Kind::Forbidden => {
            "The key is valid, but lacks the scope that <code>detail</code> names. Ask for a key that has it."
        }
        Kind::NotFound => {
            "The id is unknown, or belongs to another app; or the address is none of this API. See <a \
             href=\"/docs\">the documentation</a>."
        }
        Kind::MethodNotAllowed => "The header <code>Allow</code> names the methods that this address knows.",
        Kind::RequestTimeout => "The body was announced, and did not arrive in time. Send the request again.",
        Kind::Conflict => {
            "The object is in a state in which this cannot be done; <code>detail</code> says which. Read it again \
             before trying something else."
        }
        Kind::PreconditionFailed => {
            "Somebody changed the object since you read it. Read it again, and repeat the change with its new \
             <code>ETag</code> in <code>If-Match</code>."
        }
        Kind::TooLarge => {
            "<code>detail</code> names the limit. Large data belongs into a store, and its address into params."
        }
        Kind::UnsupportedMediaType => {
            "Send the body as JSON with <code>Content-Type: application/json</code>."
        }
        Kind::KeyReused => {
            "A job with this <code>clientRequestId</code> exists and has other content. Use a new key for a new job."
        }
        Kind::PreconditionRequired => {
            "Send the <code>ETag</code> that you read in <code>If-Match</code>, so that no change is lost."
        }
        Kind::TooManyRequests => {
            "Wait as long as <code>Retry-After</code> says. The headers <code>RateLimit</code> and \
             <code>RateLimit-Policy</code> say what is allowed."
        }
        Kind::Internal => {
            "A fault of the server. Report the <code>requestId</code>; the log has more under it."
        }
        Kind::Unavailable => {
            "Nothing was promised. Send the request again after <code>Retry-After</code>, with the same \
             <code>clientRequestId</code>: then it is made at most once."
        }
    }
}
