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
pub fn router<S: Clone + Send + Sync + 'static>(document: &OpenApi) -> Router<S> {
    let newest = serde_json::to_value(document).unwrap_or(Value::Null);
    let older = Bytes::from(down_converted(newest.clone()).to_string());
    let newest = Bytes::from(newest.to_string());
    Router::new()
        .route("/openapi.json", get(async move || json_text(newest.clone())))
        .route("/openapi-3.0.json", get(async move || json_text(older.clone())))
        .merge(SwaggerUi::new("/docs").config(Config::new(["/openapi.json"])))
}

fn json_text(text: Bytes) -> Response {
    let json = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, json)], text).into_response()
}

/// An OpenAPI 3.1 document as 3.0: `nullable` in place of the type `null`, single-valued `enum` in place of `const`.
fn down_converted(mut document: Value) -> Value {
    convert(&mut document);
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

fn convert(value: &mut Value) {
    match value {
        Value::Object(object) => {
            convert_schema(object);
            for (name, member) in object.iter_mut() {
                // What stands in an example is the user's JSON, not schema.
                if name != "example" && name != "examples" {
                    convert(member);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(convert),
        _ => {}
    }
}

fn convert_schema(object: &mut Map<String, Value>) {
    if let Some(types) = object.get("type").and_then(Value::as_array) {
        let named: Vec<Value> = types
            .iter()
            .filter(|kind| **kind != json!("null"))
            .cloned()
            .collect();
        if named.len() < types.len() {
            object.insert("nullable".into(), json!(true));
        }
        match named.as_slice() {
            [only] => object.insert("type".into(), only.clone()),
            _ => object.remove("type"),
        };
    }
    if let Some(choices) = object.get("oneOf").and_then(Value::as_array) {
        let null = json!({"type": "null"});
        let named: Vec<Value> = choices
            .iter()
            .filter(|choice| **choice != null)
            .cloned()
            .collect();
        if named.len() < choices.len() {
            object.remove("oneOf");
            let key = if named.len() == 1 { "allOf" } else { "oneOf" };
            object.insert(key.into(), Value::Array(named));
            object.insert("nullable".into(), json!(true));
        }
    }
    if let Some(constant) = object.remove("const") {
        object.insert("enum".into(), json!([constant]));
    }
    object.remove("propertyNames");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_older_document_has_no_type_null() {
        let document = serde_json::to_value(crate::openapi()).expect("serialises");
        assert_eq!(document["openapi"], "3.1.0");
        let older = down_converted(document);
        assert_eq!(older["openapi"], "3.0.3");
        let text = older.to_string();
        assert!(
            !text.contains(r#""null""#),
            "a type `null` is left in the 3.0 document"
        );
        assert!(text.contains(r#""nullable":true"#));
    }
}
