//! One delivery attempt: address, rendered template, provider call.

use std::sync::Arc;
use tokio_util::sync::CancellationToken;

use arc_swap::ArcSwap;
use postern_core::Clock;
use postern_core::circuit_breaker::BreakerState;

use crate::address::{Address, Recipient};
use crate::delivery::actors::{ActorAddress, ActorAddressError, ActorClient};
use crate::delivery::outcome::{AttemptFailure, AttemptOutcome, AttemptReport, SentMessage};
use crate::delivery::pool::{CallFailure, CallPermit, CallRejection, CallRequest, ProviderPool};
use crate::delivery::provider::{OutgoingMessage, ProviderRefusal};
use crate::delivery::retry::FailureClass;
use crate::delivery::suppression::SuppressionCache;
use crate::delivery::unverified::UnverifiedQuota;
use crate::lease::{WorkerLease, WorkerRegistry};
use crate::notification::Channel;
use crate::principal::Principal;
use crate::store::{Claimed, Record, Replay, Store};
use crate::templates::{self, AmbiguityPolicy, Locale, MessageContent, TemplateName, Templates};

/// Executes delivery attempts.
#[derive(Debug)]
pub(crate) struct AttemptExecutor {
    /// The current templates.
    pub(crate) templates: Arc<ArcSwap<Templates>>,
    /// The client of the actor service, which knows the addresses of actors.
    pub(crate) actors: ActorClient,
    /// The providers of each channel.
    pub(crate) providers: Arc<ProviderPool>,
    /// The suppression lists.
    pub(crate) suppression: Arc<SuppressionCache>,
    /// The store, for the results and receipts of earlier attempts.
    pub(crate) store: Store,
    /// The quota of messages to unverified addresses.
    pub(crate) unverified: UnverifiedQuota,
}

/// The input of one attempt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeliveryAttempt<'a> {
    /// The claimed row.
    pub(crate) claimed: &'a Claimed,
    /// The lease under which the row is claimed.
    pub(crate) worker: &'a WorkerLease,
    /// The registry that knows whether the lease is valid.
    pub(crate) workers: &'a WorkerRegistry,
    /// The clock.
    pub(crate) clock: &'a Clock,
    /// Cancelled at shutdown: no call is started afterwards.
    pub(crate) stop: &'a CancellationToken,
}

/// The decision whether a provider is called.
#[derive(Debug)]
enum CallDecision<'a> {
    /// A provider is called with this permit.
    Call(CallPermit<'a>),
    /// The attempt ends without a call.
    End(AttemptOutcome),
}

/// The result of rendering a template.
struct Rendering {
    /// The version of the template, if the template was found.
    version: Option<u32>,
    message: Result<RenderedMessage, AttemptFailure>,
}

/// A rendered template.
struct RenderedMessage {
    content: MessageContent,
    settings: DeliverySettings,
}

// === impl DeliveryAttempt ===

impl DeliveryAttempt<'_> {
    /// Runs `step`, or returns `None` if the process stops first.
    async fn unless_stopped<T>(&self, step: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.stop.cancelled() => None,
            done = step => Some(done),
        }
    }
}

// === impl AttemptExecutor ===

impl AttemptExecutor {
    /// Executes an attempt.
    pub(crate) async fn deliver(&self, attempt: &DeliveryAttempt<'_>) -> AttemptReport {
        let Rendering { version, message } = self.render(&attempt.claimed.record);
        let outcome = match message {
            Ok(message) => self.try_deliver(attempt, message).await,
            Err(failure) => Err(failure),
        };
        AttemptReport {
            outcome: outcome.unwrap_or_else(AttemptOutcome::Failed),
            template_version: version,
        }
    }

    /// Returns the time of the last replay by an operator, and the number of attempts before it.
    /// Returns `None` if there was none, or if the history cannot be read now.
    pub(crate) async fn last_replay(&self, claimed: &Claimed) -> Option<Replay> {
        if claimed.attempt == 1 {
            return None;
        }
        Box::pin(self.store.read(&[claimed.id]))
            .await
            .ok()?
            .first()?
            .last_replay()
    }

    /// Returns the best circuit breaker state among the providers of a channel.
    pub(crate) fn breaker_state(&self, channel: Channel) -> BreakerState {
        self.providers.breaker_state(channel)
    }

    /// Returns whether operators have paused all providers of a channel.
    pub(crate) fn is_paused(&self, channel: Channel) -> bool {
        self.providers.is_paused(channel)
    }

    /// Delivers a rendered message. A stop interrupts every step before the call, but not the call.
    async fn try_deliver(
        &self,
        attempt: &DeliveryAttempt<'_>,
        RenderedMessage { content, settings }: RenderedMessage,
    ) -> Result<AttemptOutcome, AttemptFailure> {
        let record = &attempt.claimed.record;
        let Some(address) = attempt
            .unless_stopped(self.destination(attempt.claimed, &settings))
            .await
        else {
            return Ok(AttemptOutcome::NotStarted);
        };
        let address = address?;
        let message = OutgoingMessage {
            id: attempt.claimed.id,
            to: &address,
            content: &content,
            sent_at: attempt.clock.now(),
            expires_at: record.expires_at,
            urgent: record.lane.priority.is_urgent(),
            unsubscribe: settings.category.is_some(),
        };
        let permit = match attempt
            .unless_stopped(self.acquire_permit(attempt, &message, &settings))
            .await
        {
            None => return Ok(AttemptOutcome::NotStarted),
            Some(decision) => match decision? {
                CallDecision::Call(permit) => permit,
                CallDecision::End(outcome) => return Ok(outcome),
            },
        };
        permit
            .send(&message)
            .await
            .map(AttemptOutcome::Sent)
            .map_err(|CallFailure { provider, refusal }| {
                self.failure_of(Some(provider), refusal, record.lane.channel, &address)
            })
    }

    /// Returns the address of the recipient.
    ///
    /// # Errors
    /// The address is unknown, suppressed, unsubscribed or unverified.
    async fn destination(
        &self,
        claimed: &Claimed,
        settings: &DeliverySettings,
    ) -> Result<Address, AttemptFailure> {
        let channel = claimed.record.lane.channel;
        let address = self.address(claimed, settings).await?;
        let unknown = |_| AttemptFailure::of(FailureClass::Transient, "suppression_unavailable");
        if self
            .suppression
            .is_suppressed(channel, &address)
            .await
            .map_err(unknown)?
        {
            return Err(AttemptFailure::permanent("address_suppressed"));
        }
        if let Some(category) = &settings.category
            && self
                .suppression
                .has_left(channel, &address, category)
                .await
                .map_err(unknown)?
        {
            return Err(AttemptFailure::permanent("recipient_unsubscribed"));
        }
        Ok(address)
    }

    /// Waits for the permit to call a provider.
    async fn acquire_permit(
        &self,
        attempt: &DeliveryAttempt<'_>,
        message: &OutgoingMessage<'_>,
        settings: &DeliverySettings,
    ) -> Result<CallDecision<'_>, AttemptFailure> {
        let Claimed {
            attempt: number,
            record,
            ..
        } = attempt.claimed;
        let (channel, priority) = (record.lane.channel, record.lane.priority);
        if *number > 1
            && let Some(sent) =
                Box::pin(self.reconcile(channel, message, settings.ambiguous)).await?
        {
            return Ok(CallDecision::End(AttemptOutcome::Sent(sent)));
        }
        // The row is released with its place and its attempt until a probe has succeeded.
        if matches!(self.providers.breaker_state(channel), BreakerState::Open(_)) {
            return Ok(CallDecision::End(AttemptOutcome::NotStarted));
        }
        let request = CallRequest {
            channel,
            message,
            attempt: *number,
            caller: &record.creator,
            priority,
        };
        let permit = match self.providers.acquire(&request).await {
            Ok(permit) => permit,
            Err(CallRejection::Refused(refusal)) => {
                return Err(self.failure_of(None, refusal, channel, message.to));
            }
            Err(CallRejection::CircuitOpen(left)) => {
                return Ok(CallDecision::End(AttemptOutcome::CircuitOpen(left)));
            }
        };
        if record
            .expires_at
            .is_some_and(|end| end <= attempt.clock.earliest())
        {
            return Ok(CallDecision::End(AttemptOutcome::Expired));
        }
        // During the wait the circuit breaker may have opened, or another worker may have taken the
        // row over and called a provider.
        if permit.is_stale() || !attempt.workers.may_start(attempt.worker) {
            return Ok(CallDecision::End(AttemptOutcome::NotStarted));
        }
        Ok(CallDecision::Call(permit))
    }

    /// Returns the message if an earlier attempt has reached a provider: according to a receipt, or
    /// to a lookup at a provider that supports it. If neither can tell, the template decides
    /// whether the message is sent again.
    async fn reconcile(
        &self,
        channel: Channel,
        message: &OutgoingMessage<'_>,
        ambiguous: AmbiguityPolicy,
    ) -> Result<Option<SentMessage>, AttemptFailure> {
        let known = self.store.read(&[message.id]).await;
        let known = known
            .map_err(|_| AttemptFailure::of(FailureClass::Transient, "history_unavailable"))?;
        let Some(snapshot) = known.first() else {
            return Ok(None);
        };
        if let Some(provider) = snapshot.reporting_provider() {
            let detail = Some("known by the provider's report".to_owned());
            return Ok(Some(SentMessage {
                provider: provider.to_owned(),
                detail,
                address: Some(message.to.hash()),
            }));
        }
        if !snapshot.has_ambiguous_attempt(|code| self.providers.is_ambiguous(code)) {
            return Ok(None);
        }
        match self.providers.look_up(channel, message).await {
            Ok(Some(sent)) => Ok(Some(sent)),
            Ok(None) if ambiguous == AmbiguityPolicy::Fail => {
                Err(AttemptFailure::permanent("outcome_unknown"))
            }
            Ok(None) => Ok(None),
            Err(CallFailure { provider, refusal }) => Err(AttemptFailure {
                provider: Some(provider),
                detail: refusal.detail,
                retry_after: refusal.retry_after,
                ..AttemptFailure::of(FailureClass::Transient, "provider_lookup_failed")
            }),
        }
    }

    /// Renders the template. A template that is missing or fails is a configuration error, which an
    /// operator can repair: while files are replaced across replicas, a notification accepted with
    /// one version may be rendered with another.
    fn render(&self, record: &Record) -> Rendering {
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
            let failure = AttemptFailure::of(FailureClass::Configuration, "template_gone");
            return Rendering {
                version: None,
                message: Err(failure),
            };
        };
        let settings = DeliverySettings::of(found.settings(), record.lane.channel);
        let content = match serde_json::from_str(&record.variables) {
            Ok(variables) => found
                .render(&variables, Principal::author(&record.creator))
                .map_err(|error| AttemptFailure {
                    detail: Some(error.to_string()),
                    ..AttemptFailure::of(FailureClass::Configuration, "template_failed")
                }),
            Err(_) => Err(AttemptFailure::permanent("variables_unreadable")),
        };
        Rendering {
            version: Some(found.version()),
            message: content.map(|content| RenderedMessage { content, settings }),
        }
    }

    async fn address(
        &self,
        Claimed { id, record, .. }: &Claimed,
        settings: &DeliverySettings,
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
                AttemptFailure::of(FailureClass::Transient, "actor_service_unavailable")
            }
        })?;
        if is_trusted {
            return Ok(address);
        }
        if !settings.unverified {
            return Err(AttemptFailure::permanent("address_not_verified"));
        }
        match self
            .unverified
            .take(*id, &record.creator, &address.hash())
            .await
        {
            Ok(true) => Ok(address),
            Ok(false) => Err(AttemptFailure::permanent("unverified_address_quota")),
            Err(_) => Err(AttemptFailure::of(
                FailureClass::Transient,
                "quota_unavailable",
            )),
        }
    }

    /// Converts the refusal of a provider, and suppresses the address if the refusal says so.
    fn failure_of(
        &self,
        provider: Option<String>,
        refusal: ProviderRefusal,
        channel: Channel,
        address: &Address,
    ) -> AttemptFailure {
        if refusal.suppress {
            self.suppression.add(channel, address.hash(), &refusal.code);
        }
        AttemptFailure {
            class: refusal.class,
            provider,
            code: refusal.code,
            detail: refusal.detail,
            retry_after: refusal.retry_after,
            address: Some(Box::new(address.hash())),
        }
    }
}

/// The settings of a template that concern delivery.
struct DeliverySettings {
    ambiguous: AmbiguityPolicy,
    category: Option<String>,
    /// Whether the message may go to the unverified address of the requesting user.
    unverified: bool,
}

impl DeliverySettings {
    fn of(settings: &templates::TemplateSettings, channel: Channel) -> Self {
        Self {
            ambiguous: settings.ambiguous,
            category: settings.category.clone(),
            unverified: *settings.unverified_addresses.get(channel),
        }
    }
}
