//! Providers.

use axum::extract::{Path, State};
use axum::response::Response;
use http::StatusCode;
use postern_core::decode::{Field, Value as Decoded};
use postern_core::email::EmailAddress;
use postern_core::{Code, Problem};
use postern_service::admin_api::changed;
use postern_service::http::{Json, json};
use serde_json::{Value, json as value};

use super::{AdminState, Api, Change};
use crate::address::{Address, DeviceToken, PhoneNumber, Recipient};
use crate::delivery::pool::ProviderDescription;
use crate::delivery::provider::OutgoingMessage;
use crate::notification::{Channel, OrderSequence, order_at};
use crate::store::ProviderPause;
use crate::templates::MessageContent;

const TEST_TEXT: &str = "This is a test message of an operator. No action is required.";
/// Maximum bytes of the reason of a pause.
const MAX_REASON_BYTES: usize = 200;
/// The subject or title of a test message.
const TEST_TITLE: &str = "Test message";

/// Handles `GET /admin/providers`.
pub(super) async fn list(State(state): State<AdminState>) -> Result<Response, Problem> {
    let view = |description: &ProviderDescription| {
        let mut view = value!(description);
        if let Some(Value::Object(state)) = state.parts.pauses.pool.state(&description.name)
            && let Some(view) = view.as_object_mut()
        {
            view.extend(state);
        }
        view
    };
    let views: Vec<Value> = state.parts.descriptions.iter().map(view).collect();
    Ok(json(StatusCode::OK, &value!({ "providers": views })))
}

/// Handles `POST /admin/providers/{name}/test`: sends a test message through this provider at once,
/// and returns its reply. Suppression, limits and circuit breaker do not apply; nothing is stored.
pub(super) async fn test(
    State(state): State<AdminState>,
    Api(api): Api,
    change: Change,
    Path(name): Path<String>,
    body: Json,
) -> Result<Response, Problem> {
    let channel = require_provider(&state, &name)?.channel;
    let to = body.read(|object| object.required("to", |field| read_address(&field, channel)))?;
    let now = api.clock.now();
    let message = OutgoingMessage {
        id: OrderSequence::id(order_at(now)),
        to: &to,
        content: &test_content(channel),
        sent_at: now,
        expires_at: None,
        urgent: true,
        unsubscribe: false,
    };
    let reply = state.parts.pauses.pool.send_directly(&name, &message).await;
    let reply = match reply.ok_or(Code::NotFound)? {
        Ok(detail) => value!({ "accepted": true, "code": null, "detail": detail }),
        Err(refusal) => value!({
            "accepted": false, "code": refusal.code, "detail": refusal.detail,
            "retryAfterSeconds": refusal.retry_after.map(|wait| wait.as_secs()),
        }),
    };
    let result = value!({ "accepted": reply["accepted"], "code": reply["code"] });
    change.record("provider.test", &name, Value::Null, result);
    Ok(changed(&reply))
}

/// Handles `POST /admin/providers/{name}/pause`: stops the calls of the provider on all replicas,
/// see `housekeeping::provider_pauses`, also after a restart. The first of several pauses stays.
pub(super) async fn pause(
    State(state): State<AdminState>,
    Api(api): Api,
    change: Change,
    Path(name): Path<String>,
    body: Json,
) -> Result<Response, Problem> {
    require_provider(&state, &name)?;
    let read_reason = |field: Field<'_>| field.text(1..=MAX_REASON_BYTES);
    let reason = body.read(|object| Some(object.optional("reason", read_reason)))?;
    let pause = ProviderPause {
        provider: name.clone(),
        operator: change.operator.name().to_owned(),
        at: api.clock.now(),
        reason,
    };
    let is_new = api.store.pause_provider(&pause).await?;
    state.parts.pauses.sync().await?;
    let after = value!({ "isPaused": true, "reason": pause.reason });
    change.record("provider.pause", &name, is_paused(!is_new), after);
    Ok(view(&state, &name))
}

/// Handles `POST /admin/providers/{name}/resume`: ends the pause on all replicas. The pause of a
/// provider that is no longer configured is ended as well.
pub(super) async fn resume(
    State(state): State<AdminState>,
    Api(api): Api,
    change: Change,
    Path(name): Path<String>,
) -> Result<Response, Problem> {
    let was_paused = api.store.resume_provider(&name).await?;
    if !was_paused {
        require_provider(&state, &name)?;
    }
    state.parts.pauses.sync().await?;
    let (before, after) = (is_paused(was_paused), is_paused(false));
    change.record("provider.resume", &name, before, after);
    Ok(view(&state, &name))
}

fn is_paused(is_paused: bool) -> Value {
    value!({ "isPaused": is_paused })
}

fn view(state: &AdminState, name: &str) -> Response {
    let paused = state.parts.pauses.pool.pause(name);
    changed(&value!({ "name": name, "paused": paused }))
}

fn require_provider<'a>(
    state: &'a AdminState,
    name: &str,
) -> Result<&'a ProviderDescription, Problem> {
    let mut providers = state.parts.descriptions.iter();
    let found = providers.find(|provider| provider.name == name);
    found.ok_or_else(|| Code::NotFound.into())
}

/// Reads `to`: the address of the channel as text, or a `recipient` as in `POST /notifications`.
fn read_address(field: &Field<'_>, channel: Channel) -> Option<Address> {
    let expected = format!("must be an address for the channel {}", channel.as_str());
    let address = match (field.value(), channel) {
        (Decoded::String(text), Channel::Email) => EmailAddress::parse(text).map(Address::Email),
        (Decoded::String(text), Channel::Sms) => PhoneNumber::parse(text).map(Address::Phone),
        (Decoded::String(text), Channel::Push) => {
            DeviceToken::parse(text).map(Address::DeviceToken)
        }
        (_, _) => Recipient::read(field, Some(channel))?.address().cloned(),
    };
    address.or_else(|| field.fail("invalid_format", expected))
}

fn test_content(channel: Channel) -> MessageContent {
    let (title, text) = (TEST_TITLE.to_owned(), TEST_TEXT.to_owned());
    match channel {
        Channel::Email => MessageContent::Email {
            subject: title,
            text,
            html: None,
        },
        Channel::Sms => MessageContent::Sms { text },
        Channel::Push => MessageContent::Push { title, body: text },
    }
}
