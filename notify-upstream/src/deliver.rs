//! One attempt: address, words, provider.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use postern_common::clock::Timestamp;

use crate::actor::{Actors, NoAddress};
use crate::address::{Address, Recipient};
use crate::notification::{Channel, NotificationId};
use crate::outlet::Outlets;
use crate::provider::{Message, Refusal};
use crate::retry::Class;
use crate::store::Claimed;
use crate::suppression::Suppression;
use crate::template::{Ambiguous, Content, Locale, TemplateName, Templates};

/// Makes attempts.
#[derive(Debug)]
pub struct Courier {
    /// The templates of the moment.
    pub templates: Arc<ArcSwap<Templates>>,
    /// Knows the addresses of actors.
    pub actors: Actors,
    /// The providers of each channel.
    pub outlets: Outlets,
    /// Addresses that are proven not to exist.
    pub suppression: Arc<Suppression>,
}

/// A claimed row whose attempt begins.
#[derive(Clone, Copy, Debug)]
pub struct Attempt<'a> {
    /// The row.
    pub claimed: &'a Claimed,
    /// Now.
    pub began: Timestamp,
}

/// How an attempt ended.
#[derive(Debug)]
pub enum Verdict {
    /// The provider took it.
    Sent(Sent),
    /// It did not work.
    Failed(Failure),
}

/// The provider took it.
#[derive(Debug)]
pub struct Sent {
    /// Which provider.
    pub provider: String,
    /// The provider's words.
    pub detail: Option<String>,
}

/// It did not work.
#[derive(Debug)]
pub struct Failure {
    /// What that means for the next attempt.
    pub class: Class,
    /// Which provider, if one was called.
    pub provider: Option<String>,
    /// Our word for the reason.
    pub code: String,
    /// The provider's words, without addresses.
    pub detail: Option<String>,
    /// The provider's wish.
    pub retry_after: Option<Duration>,
}

// === impl Courier ===

impl Courier {
    /// Delivers, or says why not.
    pub async fn deliver(&self, attempt: &Attempt<'_>) -> Verdict {
        match self.try_deliver(attempt).await {
            Ok(sent) => Verdict::Sent(sent),
            Err(failure) => Verdict::Failed(failure),
        }
    }

    /// Whether a channel has no provider that works.
    #[must_use]
    pub fn is_in_trouble(&self, channel: Channel) -> bool {
        self.outlets.is_in_trouble(channel)
    }

    async fn try_deliver(&self, attempt: &Attempt<'_>) -> Result<Sent, Failure> {
        let record = &attempt.claimed.record;
        let channel = record.lane.channel;
        let (content, settings) = self.render(attempt)?;
        if attempt.claimed.lost && settings.ambiguous == Ambiguous::Fail {
            return Err(Failure::permanent("outcome_unknown"));
        }
        let address = self.address(&record.recipient, channel).await?;
        if self.suppression.holds(channel, &address) {
            return Err(Failure::permanent("address_suppressed"));
        }
        let message = Message {
            id: attempt.claimed.id,
            to: &address,
            content: &content,
            created_at: record.created_at,
            expires_at: record.expires_at,
            urgent: record.lane.priority <= crate::notification::Priority::High,
            unsubscribe: settings.unsubscribe,
        };
        let avoid = attempt.claimed.attempt;
        let outcome = self.outlets.send(channel, &message, avoid).await;
        outcome.map_err(|(provider, refusal)| self.judge(provider, refusal, channel, &address, &settings))
    }

    fn render(&self, attempt: &Attempt<'_>) -> Result<(Content, Settings), Failure> {
        let record = &attempt.claimed.record;
        let templates = self.templates.load();
        let name = TemplateName::parse(&record.template);
        let found = name
            .as_ref()
            .and_then(|name| {
                templates.find(name, record.lane.channel, Locale::parse(&record.locale).as_ref()).ok()
            })
            .ok_or_else(|| Failure::permanent("template_gone"))?;
        let variables: serde_json::Map<_, _> = serde_json::from_str(&record.variables)
            .map_err(|_| Failure::permanent("variables_unreadable"))?;
        let settings =
            Settings { ambiguous: found.settings().ambiguous, unsubscribe: found.settings().unsubscribe };
        match found.render(&variables) {
            Ok(content) => Ok((content, settings)),
            Err(error) => {
                Err(Failure { detail: Some(error.to_string()), ..Failure::permanent("template_failed") })
            }
        }
    }

    async fn address(&self, recipient: &str, channel: Channel) -> Result<Address, Failure> {
        match serde_json::from_str(recipient) {
            Ok(Recipient::Address(address)) => Ok(address),
            Ok(Recipient::ActorId(actor)) => {
                self.actors.address(&actor, channel).await.map_err(|reason| match reason {
                    NoAddress::Unknown => Failure::permanent("actor_unknown"),
                    NoAddress::NotThere => Failure::permanent("actor_has_no_address"),
                    NoAddress::Misconfigured => Failure::of(Class::Configuration, "actor_service_refuses"),
                    NoAddress::Unavailable => Failure::of(Class::Transient, "actor_service_unavailable"),
                })
            }
            Err(_) => Err(Failure::permanent("recipient_unreadable")),
        }
    }

    /// What a provider's refusal means here.
    fn judge(
        &self,
        provider: String,
        refusal: Refusal,
        channel: Channel,
        address: &Address,
        settings: &Settings,
    ) -> Failure {
        if refusal.suppress {
            self.suppression.note(channel, address, &refusal.code);
        }
        let class = match (refusal.class, settings.ambiguous) {
            (Class::Ambiguous, Ambiguous::Fail) => Class::Permanent,
            (class, _) => class,
        };
        Failure {
            class,
            provider: (!provider.is_empty()).then_some(provider),
            code: refusal.code,
            detail: refusal.detail,
            retry_after: refusal.retry_after,
        }
    }
}

/// What the template says about its delivery.
struct Settings {
    ambiguous: Ambiguous,
    unsubscribe: bool,
}

// === impl Failure ===

impl Failure {
    /// Our own fault; it is tried again.
    #[must_use]
    pub fn internal() -> Self {
        Self::of(Class::Ambiguous, "internal_error")
    }

    fn permanent(code: &str) -> Self {
        Self::of(Class::Permanent, code)
    }

    fn of(class: Class, code: &str) -> Self {
        Self { class, provider: None, code: code.to_owned(), detail: None, retry_after: None }
    }
}

/// The name under which every system on the way knows a message: stable over all attempts.
#[must_use]
pub fn message_id(id: NotificationId, domain: &str) -> String {
    format!("<{id}@{domain}>")
}
