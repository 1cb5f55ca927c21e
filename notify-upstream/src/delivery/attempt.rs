//! One delivery attempt: address, rendered template, provider call.

use std::sync::Arc;
use tokio_util::sync::CancellationToken;

use arc_swap::ArcSwap;
use postern_core::Clock;
use postern_core::circuit_breaker::BreakerState;

use crate::address::{Address, Recipient};
use crate::delivery::actors::{ActorAddress, ActorAddressError, ActorClient};
use crate::delivery::outcome::{AttemptFailure, AttemptOutcome, SentMessage};
use crate::delivery::pool::{CallPermit, CallRequest, ProviderPool};
use crate::delivery::provider::{OutgoingMessage, ProviderRefusal};
use crate::delivery::retry::FailureClass;
use crate::delivery::suppression::{Suppression, SuppressionList};
use crate::delivery::unverified::UnverifiedQuota;
use crate::lease::{WorkerLease, WorkerRegistry};
use crate::notification::Channel;
use crate::principal::Principal;
use crate::store::{Claimed, NotificationSnapshot, Record, Replay, Store};
use crate::templates::{Locale, MessageContent, TemplateName, TemplateSettings, Templates};

/// Executes delivery attempts.
pub(crate) struct AttemptExecutor {
    pub(crate) templates: Arc<ArcSwap<Templates>>,
    /// The client of the actor service, which knows the addresses of actors.
    pub(crate) actors: ActorClient,
    pub(crate) providers: Arc<ProviderPool>,
    pub(crate) suppression: Arc<Suppression>,
    /// The store, for the results and receipts of earlier attempts.
    pub(crate) store: Store,
    /// The quota of messages to unverified addresses.
    pub(crate) unverified: UnverifiedQuota,
}

/// The input of one attempt.
#[derive(Clone, Copy)]
pub(crate) struct DeliveryAttempt<'a> {
    pub(crate) claimed: &'a Claimed,
    /// The lease under which the row is claimed.
    pub(crate) worker: &'a WorkerLease,
    /// The registry that knows whether the lease is valid.
    pub(crate) workers: &'a WorkerRegistry,
    pub(crate) clock: &'a Clock,
    /// Cancelled at shutdown: no call is started afterwards.
    pub(crate) stop: &'a CancellationToken,
}

/// A rendered template, with its settings.
type RenderedMessage = (MessageContent, Arc<TemplateSettings>);

// === impl DeliveryAttempt ===

impl DeliveryAttempt<'_> {
    /// Runs `step`, unless the process stops first.
    async fn unless_stopped<T, E: Into<AttemptOutcome>>(
        &self,
        step: impl Future<Output = Result<T, E>>,
    ) -> Result<T, AttemptOutcome> {
        tokio::select! {
            biased;
            () = self.stop.cancelled() => Err(AttemptOutcome::NotStarted),
            done = step => done.map_err(Into::into),
        }
    }
}

// === impl AttemptExecutor ===

impl AttemptExecutor {
    /// Executes an attempt. Returns the version of the template as well, if it was found.
    pub(crate) async fn deliver(
        &self,
        attempt: &DeliveryAttempt<'_>,
    ) -> (AttemptOutcome, Option<u32>) {
        let (version, message) = self.render(&attempt.claimed.record);
        let outcome = match message {
            Ok((content, settings)) => self.try_deliver(attempt, &content, &settings).await,
            Err(failure) => Err(failure.into()),
        };
        let outcome = outcome.map_or_else(|end| end, AttemptOutcome::Sent);
        (outcome, version)
    }

    /// Returns the time of the last replay by an operator, and the number of attempts before it.
    /// Returns `None` if there was none, or if the history cannot be read now.
    pub(crate) async fn last_replay(&self, claimed: &Claimed) -> Option<Replay> {
        if claimed.attempt == 1 {
            return None;
        }
        let known = Box::pin(self.store.read(&[claimed.id])).await;
        known.ok()?.first()?.last_replay()
    }

    /// Delivers a rendered message. A stop interrupts every step before the call, but not the call.
    ///
    /// # Errors
    /// The outcome, if the message was not sent.
    async fn try_deliver(
        &self,
        attempt: &DeliveryAttempt<'_>,
        content: &MessageContent,
        settings: &TemplateSettings,
    ) -> Result<SentMessage, AttemptOutcome> {
        let record = &attempt.claimed.record;
        let address = self.address(attempt.claimed, settings);
        let address = attempt.unless_stopped(address).await?;
        let message = OutgoingMessage {
            id: attempt.claimed.id,
            to: &address,
            content,
            sent_at: attempt.clock.now(),
            expires_at: record.expires_at,
            urgent: record.lane.priority.is_urgent(),
            unsubscribe: settings.category.is_some(),
        };
        let permit = self.acquire_permit(attempt, &message, settings);
        let permit = attempt.unless_stopped(permit).await?;
        let provider = permit.provider().to_owned();
        match permit.send(&message).await {
            Ok(detail) => Ok(SentMessage {
                provider,
                detail,
                address: Some(address.hash()),
            }),
            Err(refusal) => {
                let channel = record.lane.channel;
                let failure = self.failure_of(provider, refusal, channel, &address);
                Err(failure.await.into())
            }
        }
    }

    /// Checks that the recipient gets messages of this category. It is asked with the permit, because
    /// permits are given in order.
    ///
    /// # Errors
    /// The address is suppressed or unsubscribed.
    async fn check_suppression(
        &self,
        channel: Channel,
        address: &Address,
        category: Option<&str>,
    ) -> Result<(), AttemptFailure> {
        let listed = self.suppression.list_of(channel, address, category).await;
        let listed = listed.map_err(|_| AttemptFailure::transient("suppression_unavailable"))?;
        Err(AttemptFailure::permanent(match listed {
            Some(SuppressionList::Suppressed) => "address_suppressed",
            Some(SuppressionList::Unsubscribed) => "recipient_unsubscribed",
            None => return Ok(()),
        }))
    }

    /// Waits for the permit to call a provider.
    ///
    /// # Errors
    /// The outcome, if none is called.
    async fn acquire_permit(
        &self,
        attempt: &DeliveryAttempt<'_>,
        message: &OutgoingMessage<'_>,
        settings: &TemplateSettings,
    ) -> Result<CallPermit<'_>, AttemptOutcome> {
        let (number, record) = (attempt.claimed.attempt, &attempt.claimed.record);
        let (channel, priority) = (record.lane.channel, record.lane.priority);
        if number > 1
            && let Some(sent) = Box::pin(self.reconcile(message)).await?
        {
            return Err(AttemptOutcome::Sent(sent));
        }
        // The row is released with its place and its attempt until a probe has succeeded.
        if matches!(self.providers.breaker_state(channel), BreakerState::Open(_)) {
            return Err(AttemptOutcome::NotStarted);
        }
        let request = CallRequest {
            channel,
            message,
            attempt: number,
            caller: &record.creator,
            priority,
        };
        let permit = self.providers.acquire(&request).await?;
        Box::pin(self.check_suppression(channel, message.to, settings.category.as_deref())).await?;
        let now = attempt.clock.earliest();
        if record.expires_at.is_some_and(|end| end <= now) {
            return Err(AttemptOutcome::Expired);
        }
        // During the wait the circuit breaker may have opened, or another worker may have taken the
        // row over and called a provider.
        if permit.is_stale() || !attempt.workers.may_start(attempt.worker) {
            return Err(AttemptOutcome::NotStarted);
        }
        Ok(permit)
    }

    /// Returns the message if an earlier attempt has reached a provider according to a receipt.
    async fn reconcile(
        &self,
        message: &OutgoingMessage<'_>,
    ) -> Result<Option<SentMessage>, AttemptFailure> {
        let known = self.store.read(&[message.id]).await;
        let known = known.map_err(|_| AttemptFailure::transient("history_unavailable"))?;
        let provider = known
            .first()
            .and_then(NotificationSnapshot::reporting_provider);
        Ok(provider.map(|provider| SentMessage {
            provider: provider.to_owned(),
            detail: Some("known by the provider's report".to_owned()),
            address: Some(message.to.hash()),
        }))
    }

    /// Renders the template. A template that is missing or fails is a configuration error, which an
    /// operator can repair: while files are replaced across replicas, a notification accepted with
    /// one version may be rendered with another.
    /// Returns its version as well, if it was found.
    fn render(&self, record: &Record) -> (Option<u32>, Result<RenderedMessage, AttemptFailure>) {
        let templates = self.templates.load();
        let (channel, locale) = (record.lane.channel, Locale::parse(&record.locale));
        let name = TemplateName::parse(&record.template);
        let find = |name| templates.find(name, channel, locale.as_ref()).ok();
        let Some(found) = name.as_ref().and_then(find) else {
            let failure = AttemptFailure::of(FailureClass::Configuration, "template_gone");
            return (None, Err(failure));
        };
        let author = Principal::author(&record.creator);
        let content = match serde_json::from_str(&record.variables) {
            Ok(variables) => found.render(&variables, author).map_err(|error| {
                let mut failure =
                    AttemptFailure::of(FailureClass::Configuration, "template_failed");
                failure.refusal.detail = Some(error.to_string());
                failure
            }),
            Err(_) => Err(AttemptFailure::permanent("variables_unreadable")),
        };
        let settings = Arc::clone(found.settings);
        let message = content.map(|content| (content, settings));
        (Some(found.settings.version), message)
    }

    async fn address(
        &self,
        Claimed { id, record, .. }: &Claimed,
        settings: &TemplateSettings,
    ) -> Result<Address, AttemptFailure> {
        let channel = record.lane.channel;
        let actor = match serde_json::from_str(&record.recipient) {
            Ok(Recipient::Address(address)) => return Ok(address),
            Ok(Recipient::ActorId(actor)) => actor,
            Err(_) => return Err(AttemptFailure::permanent("recipient_unreadable")),
        };
        let found = Box::pin(self.actors.address(&actor, channel, &record.creator)).await;
        let ActorAddress {
            address,
            is_trusted,
        } = found.map_err(|reason| match reason {
            ActorAddressError::Unknown => AttemptFailure::permanent("actor_unknown"),
            ActorAddressError::Missing => AttemptFailure::permanent("actor_has_no_address"),
            ActorAddressError::Misconfigured => {
                AttemptFailure::of(FailureClass::Configuration, "actor_service_refuses")
            }
            ActorAddressError::Unavailable => {
                AttemptFailure::transient("actor_service_unavailable")
            }
        })?;
        if is_trusted {
            return Ok(address);
        }
        if !settings.unverified_addresses.get(channel) {
            return Err(AttemptFailure::permanent("address_not_verified"));
        }
        let hash = address.hash();
        match self.unverified.take(*id, &record.creator, &hash).await {
            Ok(true) => Ok(address),
            Ok(false) => Err(AttemptFailure::permanent("unverified_address_quota")),
            Err(_) => Err(AttemptFailure::transient("quota_unavailable")),
        }
    }

    /// Converts the refusal of a provider, and suppresses the address if the refusal says so.
    async fn failure_of(
        &self,
        provider: String,
        refusal: ProviderRefusal,
        channel: Channel,
        address: &Address,
    ) -> AttemptFailure {
        if refusal.suppress {
            self.suppression
                .add_or_defer(channel, address.hash(), &refusal.code)
                .await;
        }
        AttemptFailure {
            refusal,
            provider: Some(provider),
            address: Some(Box::new(address.hash())),
        }
    }
}
