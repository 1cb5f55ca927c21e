//! One attempt: address, words, provider.

use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

use arc_swap::ArcSwap;
use postern_common::Clock;
use postern_common::clock::Timestamp;

use crate::address::{Address, AddressHash, Recipient};
use crate::delivery::actors::{Actors, NoAddress, OwnAddress};
use crate::delivery::pool::{NoPass, Outlets, Pass, Standing};
use crate::delivery::provider::{Message, Refusal};
use crate::delivery::retry::Class;
use crate::delivery::suppression::Suppression;
use crate::delivery::unverified::UnverifiedQuota;
use crate::lease::Worker;
use crate::lease::Workers;
use crate::notification::{Channel, NotificationId};
use crate::principal::Principal;
use crate::store::{Claimed, Record, Store};
use crate::templates::{self, AmbiguityPolicy, Locale, MessageContent, TemplateName, Templates};

/// Makes attempts.
#[derive(Debug)]
pub(crate) struct Courier {
    /// The templates of the moment.
    pub(crate) templates: Arc<ArcSwap<Templates>>,
    /// Knows the addresses of actors.
    pub(crate) actors: Actors,
    /// The providers of each channel.
    pub(crate) outlets: Outlets,
    /// Addresses that are proven not to exist.
    pub(crate) suppression: Arc<Suppression>,
    /// What became of earlier attempts.
    pub(crate) store: Store,
    /// How much goes to addresses that nobody has verified.
    pub(crate) unverified: UnverifiedQuota,
}

/// A claimed row whose attempt begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempt<'a> {
    /// The row.
    pub(crate) claimed: &'a Claimed,
    /// Under which identity it is leased.
    pub(crate) worker: &'a Worker,
    /// Who knows whether that is alive.
    pub(crate) workers: &'a Workers,
    /// The time.
    pub(crate) clock: &'a Clock,
    /// Calls nobody any more once it has begun.
    pub(crate) stop: &'a CancellationToken,
}

/// How an attempt ended.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// The provider took it.
    Sent(Sent),
    /// It did not work.
    Failed(Failure),
    /// Its time was over before its turn came.
    Expired,
    /// No provider works, the stop came before its turn, or its lease was no longer sure by then.
    NotBegun,
    /// Others are carried, but each provider that carries such an address is left alone for so
    /// long.
    LeftAlone(Duration),
}

/// The provider took it.
#[derive(Debug)]
pub(crate) struct Sent {
    /// Which provider.
    pub(crate) provider: String,
    /// The provider's words.
    pub(crate) detail: Option<String>,
    /// The address that it was given, hashed.
    pub(crate) address: Option<AddressHash>,
}

/// It did not work.
#[derive(Debug)]
pub(crate) struct Failure {
    /// What that means for the next attempt.
    pub(crate) class: Class,
    /// Which provider, if one was called.
    pub(crate) provider: Option<String>,
    /// Our word for the reason.
    pub(crate) code: String,
    /// The provider's words, without addresses.
    pub(crate) detail: Option<String>,
    /// The provider's wish.
    pub(crate) retry_after: Option<Duration>,
    /// The address that the provider was given, hashed.
    pub(crate) address: Option<Box<AddressHash>>,
}

// === impl Attempt ===

impl Attempt<'_> {
    /// `None` when the stop comes first.
    async fn unless_stopped<T>(&self, step: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.stop.cancelled() => None,
            done = step => Some(done),
        }
    }
}

// === impl Courier ===

impl Courier {
    /// Delivers, or says why not; and the version of the template that was used.
    pub(crate) async fn deliver(&self, attempt: &Attempt<'_>) -> (Verdict, Option<u32>) {
        let (version, words) = self.render(&attempt.claimed.record);
        let outcome = match words {
            Ok(words) => self.try_deliver(attempt, words).await,
            Err(failure) => Err(failure),
        };
        (outcome.unwrap_or_else(Verdict::Failed), version)
    }

    /// When an operator last queued it again, and after how many attempts; `None` also where that
    /// cannot be read now.
    pub(crate) async fn replayed(&self, claimed: &Claimed) -> Option<(Timestamp, i32)> {
        if claimed.attempt == 1 {
            return None;
        }
        Box::pin(self.store.read(&[claimed.id]))
            .await
            .ok()?
            .first()?
            .replayed()
    }

    /// The best that is known of a channel's providers.
    #[must_use]
    pub(crate) fn standing(&self, channel: Channel) -> Standing {
        self.outlets.standing(channel)
    }

    /// Whatever comes before the call ends with the stop; the call itself does not.
    async fn try_deliver(
        &self,
        attempt: &Attempt<'_>,
        (content, settings): (MessageContent, Settings),
    ) -> Result<Verdict, Failure> {
        let record = &attempt.claimed.record;
        let Some(address) = attempt
            .unless_stopped(self.destination(attempt.claimed, &settings))
            .await
        else {
            return Ok(Verdict::NotBegun);
        };
        let address = address?;
        let message = Message {
            id: attempt.claimed.id,
            to: &address,
            content: &content,
            created_at: record.created_at,
            expires_at: record.expires_at,
            urgent: record.lane.priority.is_urgent(),
            unsubscribe: settings.unsubscribe,
        };
        let pass = match attempt
            .unless_stopped(self.turn(attempt, &message, &settings))
            .await
        {
            None => return Ok(Verdict::NotBegun),
            Some(Err(end)) => return end,
            Some(Ok(pass)) => pass,
        };
        let refused =
            |(name, refusal)| self.judge(Some(name), refusal, record.lane.channel, &address);
        pass.send(&message)
            .await
            .map(Verdict::Sent)
            .map_err(refused)
    }

    /// The address, unless it gets nothing.
    async fn destination(
        &self,
        claimed: &Claimed,
        settings: &Settings,
    ) -> Result<Address, Failure> {
        let channel = claimed.record.lane.channel;
        let address = self.address(claimed, settings).await?;
        let unknown = |_| Failure::of(Class::Transient, "suppression_unavailable");
        if self
            .suppression
            .holds(channel, &address)
            .await
            .map_err(unknown)?
        {
            return Err(Failure::permanent("address_suppressed"));
        }
        if settings.unsubscribe
            && self
                .suppression
                .is_unsubscribed(channel, &address)
                .await
                .map_err(unknown)?
        {
            return Err(Failure::permanent("recipient_unsubscribed"));
        }
        Ok(address)
    }

    /// Waits for the right to call a provider; or how the attempt ends without a call.
    async fn turn(
        &self,
        attempt: &Attempt<'_>,
        message: &Message<'_>,
        settings: &Settings,
    ) -> Result<Pass<'_>, Result<Verdict, Failure>> {
        let Claimed {
            attempt: number,
            record,
            ..
        } = attempt.claimed;
        let (channel, priority) = (record.lane.channel, record.lane.priority);
        if *number > 1
            && let Some(sent) = Box::pin(self.reconcile(channel, message, settings.ambiguous))
                .await
                .map_err(Err)?
        {
            return Err(Ok(Verdict::Sent(sent)));
        }
        // Left to others, in its place and with its attempt, until one has gone to see.
        if matches!(self.outlets.standing(channel), Standing::Open(_)) {
            return Err(Ok(Verdict::NotBegun));
        }
        let caller = (record.creator.as_str(), priority);
        let pass = self.outlets.pass(channel, message, *number, caller).await;
        let pass = pass.map_err(|none| match none {
            NoPass::Refused(refusal) => Err(self.judge(None, refusal, channel, message.to)),
            NoPass::LeftAlone(left) => Ok(Verdict::LeftAlone(left)),
        })?;
        if record
            .expires_at
            .is_some_and(|end| end <= attempt.clock.now())
        {
            return Err(Ok(Verdict::Expired));
        }
        // While it waited the provider may have been given up, or others may have taken it over,
        // and called.
        if pass.is_vain() || !attempt.workers.holds(attempt.worker) {
            return Err(Ok(Verdict::NotBegun));
        }
        Ok(pass)
    }

    /// Whether an earlier attempt has reached a provider after all: by what a provider has reported
    /// under our id, else by asking one that can be asked. Where nobody can tell, the template says
    /// whether it is sent again.
    async fn reconcile(
        &self,
        channel: Channel,
        message: &Message<'_>,
        ambiguous: AmbiguityPolicy,
    ) -> Result<Option<Sent>, Failure> {
        let known = self.store.read(&[message.id]).await;
        let known = known.map_err(|_| Failure::of(Class::Transient, "history_unavailable"))?;
        let Some(snapshot) = known.first() else {
            return Ok(None);
        };
        if let Some(provider) = snapshot.reported_by() {
            let detail = Some("known by the provider's report".to_owned());
            return Ok(Some(Sent {
                provider: provider.to_owned(),
                detail,
                address: Some(message.to.hash()),
            }));
        }
        if !snapshot.is_in_doubt(|code| self.outlets.leaves_doubt(code)) {
            return Ok(None);
        }
        match self.outlets.look(channel, message).await {
            Ok(Some(sent)) => Ok(Some(sent)),
            Ok(None) if ambiguous == AmbiguityPolicy::Fail => {
                Err(Failure::permanent("outcome_unknown"))
            }
            Ok(None) => Ok(None),
            Err((provider, refusal)) => Err(Failure {
                provider: Some(provider),
                detail: refusal.detail,
                retry_after: refusal.retry_after,
                ..Failure::of(Class::Transient, "provider_lookup_failed")
            }),
        }
    }

    /// A template that is gone or fails is the operator's to mend: while its files change all over
    /// a fleet, what was accepted with one version may meet another.
    fn render(
        &self,
        record: &Record,
    ) -> (Option<u32>, Result<(MessageContent, Settings), Failure>) {
        let templates = self.templates.load();
        let name = TemplateName::parse(&record.template);
        let found = name.as_ref().and_then(|name| {
            templates
                .find(
                    name,
                    record.lane.channel,
                    Locale::parse(&record.locale).as_ref(),
                )
                .ok()
        });
        let Some(found) = found else {
            return (
                None,
                Err(Failure::of(Class::Configuration, "template_gone")),
            );
        };
        let settings = Settings::of(found.settings(), record.lane.channel);
        let words = match serde_json::from_str(&record.variables) {
            Ok(variables) => found
                .render(&variables, Principal::author(&record.creator))
                .map_err(|error| Failure {
                    detail: Some(error.to_string()),
                    ..Failure::of(Class::Configuration, "template_failed")
                }),
            Err(_) => Err(Failure::permanent("variables_unreadable")),
        };
        (
            Some(found.version()),
            words.map(|content| (content, settings)),
        )
    }

    async fn address(
        &self,
        Claimed { id, record, .. }: &Claimed,
        settings: &Settings,
    ) -> Result<Address, Failure> {
        let channel = record.lane.channel;
        let actor = match serde_json::from_str(&record.recipient) {
            Ok(Recipient::Address(address)) => return Ok(address),
            Ok(Recipient::ActorId(actor)) => actor,
            Err(_) => return Err(Failure::permanent("recipient_unreadable")),
        };
        let found = Box::pin(self.actors.address(&actor, channel, &record.creator)).await;
        let OwnAddress {
            address,
            is_trusted,
        } = found.map_err(|reason| match reason {
            NoAddress::Unknown => Failure::permanent("actor_unknown"),
            NoAddress::NotThere => Failure::permanent("actor_has_no_address"),
            NoAddress::Misconfigured => Failure::of(Class::Configuration, "actor_service_refuses"),
            NoAddress::Unavailable => Failure::of(Class::Transient, "actor_service_unavailable"),
        })?;
        if is_trusted {
            return Ok(address);
        }
        if !settings.unverified {
            return Err(Failure::permanent("address_not_verified"));
        }
        match self
            .unverified
            .take(*id, &record.creator, &address.hash())
            .await
        {
            Ok(true) => Ok(address),
            Ok(false) => Err(Failure::permanent("unverified_address_quota")),
            Err(_) => Err(Failure::of(Class::Transient, "quota_unavailable")),
        }
    }

    /// What a provider's refusal means here.
    fn judge(
        &self,
        provider: Option<String>,
        refusal: Refusal,
        channel: Channel,
        address: &Address,
    ) -> Failure {
        if refusal.suppress {
            self.suppression.note(channel, address, &refusal.code);
        }
        Failure {
            class: refusal.class,
            provider,
            code: refusal.code,
            detail: refusal.detail,
            retry_after: refusal.retry_after,
            address: Some(Box::new(address.hash())),
        }
    }
}

/// What the template says about its delivery.
struct Settings {
    ambiguous: AmbiguityPolicy,
    unsubscribe: bool,
    /// Whether it may go to a user's own address that is not verified.
    unverified: bool,
}

impl Settings {
    fn of(settings: &templates::TemplateSettings, channel: Channel) -> Self {
        Self {
            ambiguous: settings.ambiguous,
            unsubscribe: settings.unsubscribe,
            unverified: settings.unverified_addresses[channel.index()],
        }
    }
}

// === impl Failure ===

impl Failure {
    /// Our own fault; it is tried again.
    #[must_use]
    pub(crate) fn internal() -> Self {
        Self::of(Class::Ambiguous, crate::delivery::provider::INTERNAL_ERROR)
    }

    /// Every attempt was made, and no end of one could be written.
    #[must_use]
    pub(crate) fn spent() -> Self {
        Self::permanent("attempts_spent")
    }

    /// Nobody could be called for it until its time was over.
    #[must_use]
    pub(crate) fn left_alone() -> Self {
        Self::of(Class::Transient, "provider_left_alone")
    }

    fn permanent(code: &str) -> Self {
        Self::of(Class::Permanent, code)
    }

    fn of(class: Class, code: &str) -> Self {
        Self {
            class,
            provider: None,
            code: code.to_owned(),
            detail: None,
            retry_after: None,
            address: None,
        }
    }
}

/// The name under which every system on the way knows a message: stable over all attempts.
#[must_use]
pub(crate) fn message_id(id: NotificationId, domain: &str) -> String {
    format!("<{id}@{domain}>")
}
