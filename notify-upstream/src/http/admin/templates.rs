//! Templates.

use axum::extract::Path;
use axum::response::Response;
use http::StatusCode;
use postern_core::decode::{Field, Value as Decoded};
use postern_core::{Code, Problem};
use postern_service::http::{Json, json};
use serde_json::{Map, Value, json as value};

use super::Api;
use crate::delivery::provider::segment_count;
use crate::notification::Channel;
use crate::templates::{Locale, MessageContent, TemplateName, Templates, VariableAuthor};

/// Handles `GET /admin/templates`: the templates that are loaded.
pub(super) async fn list(Api(api): Api) -> Result<Response, Problem> {
    let templates = api.templates.load().descriptions();
    Ok(json(StatusCode::OK, &value!({ "templates": templates })))
}

/// Handles `POST /admin/templates/{name}/preview`: renders a template, or returns in `errors` why it
/// does not render.
pub(super) async fn preview(
    Api(api): Api,
    Path(name): Path<String>,
    body: Json,
) -> Result<Response, Problem> {
    let name = TemplateName::parse(&name).ok_or(Code::NotFound)?;
    let (channel, locale, variables) = body.read(|object| {
        let channel = object.required("channel", |field| field.one_of(Channel::NAMES));
        let locale = object.optional("locale", Locale::read);
        let variables = object.or("variables", Map::new(), read_variables);
        Some((channel?, locale, variables))
    })?;
    let (wanted, templates) = ((&name, channel, locale.as_ref()), api.templates.load());
    let found = render(&templates, wanted, &variables, VariableAuthor::Service);
    let detail = "there is no template of this name for this channel";
    let found = found.ok_or_else(|| Problem::new(Code::NotFound).detail(detail))?;
    let body = match found {
        Ok(mut message) => {
            message["errors"] = value!([]);
            message
        }
        Err(errors) => value!({ "errors": errors }),
    };
    Ok(json(StatusCode::OK, &body))
}

fn read_variables(field: Field<'_>) -> Option<Map<String, Value>> {
    let Decoded::Object(_) = field.value() else {
        return field.fail("invalid_type", "must be an object");
    };
    let Value::Object(variables) = field.node().to_json() else {
        return None;
    };
    Some(variables)
}

/// Renders a template. Returns `None` if there is none for the channel; otherwise the message with
/// the version and the locale of the template, or the reasons why it does not render.
pub(super) fn render(
    templates: &Templates,
    (name, channel, locale): (&TemplateName, Channel, Option<&Locale>),
    variables: &Map<String, Value>,
    author: VariableAuthor,
) -> Option<Result<Value, Vec<Value>>> {
    let found = templates.find(name, channel, locale).ok()?;
    let missing = found.missing(variables).into_iter().map(|name| {
        let pointer = format!("/variables/{}", name.replace('.', "/"));
        value!({ "pointer": pointer, "code": "missing_variable" })
    });
    let missing: Vec<Value> = missing.collect();
    if !missing.is_empty() {
        return Some(Err(missing));
    }
    Some(match found.render(variables, author) {
        Ok(content) => {
            let mut body = value!(content);
            if let MessageContent::Sms { text } = &content {
                body["segments"] = segment_count(text).into();
            }
            body["version"] = found.settings.version.into();
            body["locale"] = found.locale.as_str().into();
            Ok(body)
        }
        Err(error) => Err(vec![value!({
            "pointer": "/variables", "code": "does_not_render", "detail": error.to_string(),
        })]),
    })
}
