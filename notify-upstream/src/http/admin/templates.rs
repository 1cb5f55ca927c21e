//! Templates.

use axum::extract::Path;
use axum::response::Response;
use http::StatusCode;
use postern_core::decode::{Field, Object, Value as Decoded};
use postern_core::{Code, Problem};
use postern_service::admin_api::changed;
use postern_service::http::{Json, json};
use serde_json::{Map, Value, json as value};

use super::recipient::read_recipient;
use super::{Api, Change};
use crate::intake::request::NotificationRequest;
use crate::notification::{Channel, Priority};
use crate::operations::templates::{PreviewError, content_json, preview as render};
use crate::principal::Principal;
use crate::templates::{Locale, TemplateName, VariableAuthor};

/// The creator of notifications that operators send.
const OPERATOR_CREATOR: &str = "operator";

/// The body of a preview.
struct PreviewRequest {
    channel: Channel,
    locale: Option<Locale>,
    variables: Map<String, Value>,
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

/// Handles `POST /admin/templates/{name}/send`: accepts a notification of the creator `operator`.
pub(super) async fn send(
    Api(api): Api,
    change: Change,
    Path(name): Path<String>,
    body: Json,
) -> Result<Response, Problem> {
    let template = TemplateName::parse(&name).ok_or(Code::NotFound)?;
    let permit = body.permit();
    let request = body.read(|object| {
        let request = read_request(object);
        let priority = object.or("priority", Priority::Normal, |field| {
            field.one_of(Priority::NAMES)
        });
        let channel = request.as_ref()?.channel;
        let recipient = object.required("to", |field| read_recipient(&field, channel));
        let PreviewRequest {
            channel,
            locale,
            variables,
        } = request?;
        Some(NotificationRequest {
            channel,
            recipient: recipient?,
            template,
            variables,
            locale,
            priority,
            send_at: None,
            expires_at: None,
        })
    })?;
    let request = request.check(&api.templates.load(), VariableAuthor::Service)?;
    let principal = Principal {
        creator: OPERATOR_CREATOR.into(),
        actor: None,
    };
    let accepted = api
        .submissions
        .submit(&principal, request, None, permit)
        .await?;
    let after = value!({ "notificationId": accepted.id.to_string() });
    change.record("template.send", &name, Value::Null, after.clone());
    Ok(changed(&after))
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
