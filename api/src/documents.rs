//! The OpenAPI document as served: 3.1 as it is made, 3.0 for tools that know no better, and pages to browse it. All
//! from the binary, no outside host.

use axum::{
    Router,
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
    routing::get,
};
use bytes::Bytes;
use serde_json::{Map, Value, json};
use utoipa::openapi::OpenApi;
use utoipa_swagger_ui::{Config, SwaggerUi};

/// Routes of the document and its pages.
pub(crate) fn router<S: Clone + Send + Sync + 'static>(document: Value) -> Router<S> {
    let newest = Bytes::from(document.to_string());
    // The pages' own default asks a validator on the internet.
    let pages = Config::new(["/openapi.json"]).validator_url("none");
    let older = Bytes::from(down_converted(document).to_string());
    Router::new()
        .route("/openapi.json", get(async move || json_text(newest.clone())))
        .route("/openapi-3.0.json", get(async move || json_text(older.clone())))
        .merge(SwaggerUi::new("/docs").config(pages))
}

fn json_text(text: Bytes) -> Response {
    let json = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, json)], text).into_response()
}

/// The document without the type `null`: what is absent here is left out and never null, in requests and in answers.
///
/// # Panics
/// Never: the document's own types serialise without a fallible part.
pub(crate) fn without_null(document: &OpenApi) -> Value {
    let mut value = serde_json::to_value(document).expect("a document is JSON");
    visit_schemas(&mut value, &mut take_null_out);
    value
}

/// An OpenAPI 3.1 document as 3.0, which has no `const` and no licence identifiers.
fn down_converted(mut document: Value) -> Value {
    visit_schemas(&mut document, &mut make_older);
    if let Some(root) = document.as_object_mut() {
        root.insert("openapi".into(), json!("3.0.3"));
        root.remove("jsonSchemaDialect");
        root.remove("webhooks");
    }
    if let Some(license) = document
        .pointer_mut("/info/license")
        .and_then(Value::as_object_mut)
    {
        license.remove("identifier");
    }
    document
}

/// Visits every object that may be a schema. What stands in an example is the user's JSON, not schema.
fn visit_schemas(value: &mut Value, change: &mut impl FnMut(&mut Map<String, Value>)) {
    match value {
        Value::Object(object) => {
            change(object);
            for (name, member) in object.iter_mut() {
                if name != "example" && name != "examples" {
                    visit_schemas(member, change);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| visit_schemas(item, change)),
        _ => {}
    }
}

fn take_null_out(object: &mut Map<String, Value>) {
    if let Some(types) = object.get_mut("type").and_then(Value::as_array_mut) {
        types.retain(|kind| kind != "null");
        if let [only] = types.as_slice() {
            let only = only.clone();
            object.insert("type".into(), only);
        }
    }
    let null = json!({"type": "null"});
    let choices = object.get_mut("oneOf").and_then(Value::as_array_mut);
    if let Some(choices) = choices.filter(|choices| choices.contains(&null)) {
        choices.retain(|choice| *choice != null);
        if let [Value::Object(only)] = choices.as_slice() {
            let only = only.clone();
            object.remove("oneOf");
            object.extend(only);
        }
    }
}

fn make_older(object: &mut Map<String, Value>) {
    if let Some(constant) = object.remove("const") {
        object.insert("enum".into(), json!([constant]));
    }
    object.remove("propertyNames");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_documents_are_of_their_version_and_know_no_null() {
        let document = crate::openapi();
        assert_eq!(document["openapi"], "3.1.0");
        let older = down_converted(document.clone());
        assert_eq!(older["openapi"], "3.0.3");
        for text in [document.to_string(), older.to_string()] {
            assert!(!text.contains(r#""null""#), "a type `null` is left");
        }
        assert!(!older.to_string().contains(r#""const""#));
    }
}
