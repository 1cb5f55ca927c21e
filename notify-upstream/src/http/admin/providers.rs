//! Providers.

use axum::extract::{Path, State};
use axum::response::Response;
use http::StatusCode;
use postern_common::admin_api::changed;
use postern_common::decode::Field;
use postern_common::http::{Json, json};
use postern_common::{Code, Problem};
use serde::Serialize;
use serde_json::{Value, json as value};

use super::recipient::read_recipient;
use super::{AdminState, Api, Change};
use crate::address::{Address, Recipient};
use crate::delivery::pool::{ProviderDescription, ProviderState};
use crate::delivery::provider::OutgoingMessage;
use crate::notification::{Channel, OrderSequence, order_at};
use crate::templates::MessageContent;

/// The text of a test message.
const TEST_TEXT: &str = "This is a test message of an operator. No action is required.";
/// The subject or title of a test message.
const TEST_TITLE: &str = "Test message";

/// A provider with its settings and the state of this process.
#[derive(Serialize)]
struct ProviderView<'a> {
    #[serde(flatten)]
    description: &'a ProviderDescription,
    #[serde(flatten)]
    state: Option<ProviderState>,
}

/// Handles `GET /admin/providers`.
pub(super) async fn list(State(state): State<AdminState>) -> Result<Response, Problem> {
    let views: Vec<ProviderView<'_>> = state
        .parts
        .descriptions
        .iter()
        .map(|description| ProviderView {
            description,
            state: state.parts.pool.state(&description.name),
        })
        .collect();
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
    let mut providers = state.parts.descriptions.iter();
    let provider = providers
        .find(|provider| provider.name == name)
        .ok_or(Code::NotFound)?;
    let channel = provider.channel;
    let to = body.read(|object| object.required("to", |field| read_address(&field, channel)))?;
    let now = api.clock.now();
    let message = OutgoingMessage {
        id: OrderSequence::id(order_at(now)),
        to: &to,
        content: &test_content(channel),
        created_at: now,
        expires_at: None,
        urgent: true,
        unsubscribe: false,
    };
    let reply = state.parts.pool.send_directly(&name, &message).await;
    let reply = match reply.ok_or(Code::NotFound)? {
        Ok(ack) => value!({ "accepted": true, "code": null, "detail": ack.detail }),
        Err(refusal) => value!({
            "accepted": false, "code": refusal.code, "detail": refusal.detail,
            "retryAfterSeconds": refusal.retry_after.map(|wait| wait.as_secs()),
        }),
    };
    let result = value!({ "accepted": reply["accepted"], "code": reply["code"] });
    change.record("provider.test", &name, Value::Null, result);
    Ok(changed(&reply))
}

fn read_address(field: &Field<'_>, channel: Channel) -> Option<Address> {
    match read_recipient(field, channel)? {
        Recipient::Address(address) => Some(address),
        Recipient::ActorId(_) => field.fail("invalid_format", "must be an address"),
    }
}

fn test_content(channel: Channel) -> MessageContent {
    match channel {
        Channel::Email => MessageContent::Email {
            subject: TEST_TITLE.to_owned(),
            text: TEST_TEXT.to_owned(),
            html: None,
        },
        Channel::Sms => MessageContent::Sms {
            text: TEST_TEXT.to_owned(),
        },
        Channel::Push => MessageContent::Push {
            title: TEST_TITLE.to_owned(),
            body: TEST_TEXT.to_owned(),
        },
    }
}
