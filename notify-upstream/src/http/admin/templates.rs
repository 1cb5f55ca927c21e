//! Templates.

use axum::extract::Path;
use axum::response::Response;
use http::StatusCode;
use postern_core::decode::{Field, Object, Value as Decoded};
use postern_core::{Code, Problem};
use postern_service::http::{Json, json};
use serde_json::{Map, Value, json as value};

use super::Api;
use crate::delivery::provider::segment_count;
use crate::notification::Channel;
use crate::templates::{
    Locale, MessageContent, RenderError, TemplateName, Templates, VariableAuthor,
};

/// The body of a preview.
struct PreviewRequest {
    channel: Channel,
    locale: Option<Locale>,
    variables: Map<String, Value>,
}

/// A rendered template.
pub(super) struct Preview {
    /// The version of the template.
    pub(super) version: u32,
    /// The locale that was chosen.
    pub(super) locale: String,
    pub(super) content: MessageContent,
}

/// The reason why a template cannot be rendered.
pub(super) enum PreviewError {
    /// There is no such template, or none for the channel.
    NotFound,
    /// The paths of variables that are missing.
    Missing(Vec<String>),
    /// The template does not render with these variables.
    Render(RenderError),
}

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
    let request = body.read(read_request)?;
    let wanted = (&name, request.channel, request.locale.as_ref());
    let templates = api.templates.load();
    let author = VariableAuthor::Service;
    let body = match render(&templates, wanted, &request.variables, author) {
        Ok(found) => {
            let mut body = content_json(&found.content);
            body["version"] = found.version.into();
            body["locale"] = found.locale.into();
            body["errors"] = value!([]);
            body
        }
        Err(PreviewError::NotFound) => {
            let detail = "there is no template of this name for this channel";
            return Err(Problem::new(Code::NotFound).detail(detail));
        }
        Err(PreviewError::Missing(names)) => {
            let error = |name: &String| {
                let pointer = format!("/variables/{}", name.replace('.', "/"));
                value!({ "pointer": pointer, "code": "missing_variable" })
            };
            value!({ "errors": names.iter().map(error).collect::<Vec<_>>() })
        }
        Err(PreviewError::Render(error)) => value!({ "errors": [
            { "pointer": "/variables", "code": "does_not_render", "detail": error.to_string() }
        ] }),
    };
    Ok(json(StatusCode::OK, &body))
}

fn read_request(object: &Object<'_>) -> Option<PreviewRequest> {
    let channel = object.required("channel", |field| field.one_of(Channel::NAMES));
    let locale = object.optional("locale", |field| {
        Locale::parse(field.string()?)
            .or_else(|| field.fail("invalid_format", "must be a tag such as en or de-AT"))
    });
    let variables = object.or("variables", Map::new(), read_variables);
    Some(PreviewRequest {
        channel: channel?,
        locale,
        variables,
    })
}

fn read_variables(field: Field<'_>) -> Option<Map<String, Value>> {
    let Decoded::Object(_) = field.value() else {
        return field.fail("invalid_type", "must be an object");
    };
    match field.node().to_json() {
        Value::Object(variables) => Some(variables),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            None
        }
    }
}

/// Renders a template with the variables of a service.
///
/// # Errors
/// The template does not exist, or does not render with these variables.
pub(super) fn render(
    templates: &Templates,
    (name, channel, locale): (&TemplateName, Channel, Option<&Locale>),
    variables: &Map<String, Value>,
    author: VariableAuthor,
) -> Result<Preview, PreviewError> {
    let found = templates
        .find(name, channel, locale)
        .map_err(|_| PreviewError::NotFound)?;
    let missing = found.missing(variables);
    if !missing.is_empty() {
        return Err(PreviewError::Missing(missing));
    }
    let content = found
        .render(variables, author)
        .map_err(PreviewError::Render)?;
    Ok(Preview {
        version: found.version(),
        locale: found.locale().as_str().to_owned(),
        content,
    })
}

/// Returns a message as JSON: `subject`, `text` and `html` of an e-mail, `text` and `segments` of a
/// text message, `title` and `body` of a push message.
pub(super) fn content_json(content: &MessageContent) -> Value {
    match content {
        MessageContent::Email {
            subject,
            text,
            html,
        } => value!({ "subject": subject, "text": text, "html": html }),
        MessageContent::Sms { text } => value!({ "text": text, "segments": segment_count(text) }),
        MessageContent::Push { title, body } => value!({ "title": title, "body": body }),
    }
}
