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
use crate::delivery::suppression::{Suppression, SuppressionList};
use crate::delivery::unverified::UnverifiedQuota;
use crate::lease::{WorkerLease, WorkerRegistry};
use crate::notification::Channel;
use crate::principal::Principal;
use crate::store::{Claimed, NotificationSnapshot, Record, Replay, Store};
use crate::templates::{self, Locale, MessageContent, TemplateName, Templates};

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
    pub(crate) suppression: Arc<Suppression>,
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
            .unless_stopped(self.address(attempt.claimed, &settings))
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
        match permit.send(&message).await {
            Ok(sent) => Ok(AttemptOutcome::Sent(sent)),
            Err(CallFailure { provider, refusal }) => {
                let channel = record.lane.channel;
                Err(self
                    .failure_of(Some(provider), refusal, channel, &address)
                    .await)
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
        let listed = self.suppression.list_in_turn(channel, address, category);
        let listed = listed
            .await
            .map_err(|_| AttemptFailure::of(FailureClass::Transient, "suppression_unavailable"))?;
        match listed {
            Some(SuppressionList::Suppressed) => {
                Err(AttemptFailure::permanent("address_suppressed"))
            }
            Some(SuppressionList::Unsubscribed) => {
                Err(AttemptFailure::permanent("recipient_unsubscribed"))
            }
            None => Ok(()),
        }
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
            && let Some(sent) = Box::pin(self.reconcile(message)).await?
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
                return Err(self.failure_of(None, refusal, channel, message.to).await);
            }
            Err(CallRejection::CircuitOpen(left)) => {
                return Ok(CallDecision::End(AttemptOutcome::CircuitOpen(left)));
            }
        };
        Box::pin(self.check_suppression(channel, message.to, settings.category.as_deref())).await?;
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

    /// Returns the message if an earlier attempt has reached a provider according to a receipt.
    async fn reconcile(
        &self,
        message: &OutgoingMessage<'_>,
    ) -> Result<Option<SentMessage>, AttemptFailure> {
        let known = self.store.read(&[message.id]).await;
        let known = known
            .map_err(|_| AttemptFailure::of(FailureClass::Transient, "history_unavailable"))?;
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
    async fn failure_of(
        &self,
        provider: Option<String>,
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
    category: Option<String>,
    /// Whether the message may go to the unverified address of the requesting user.
    unverified: bool,
}

impl DeliverySettings {
    fn of(settings: &templates::TemplateSettings, channel: Channel) -> Self {
        Self {
            category: settings.category.clone(),
            unverified: *settings.unverified_addresses.get(channel),
        }
    }
}
