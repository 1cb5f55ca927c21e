//! Components of the service, created from its configuration.

use std::sync::Arc;

use arc_swap::ArcSwap;
use postern_core::Clock;
use postern_core::exit::Exit;
use postern_core::token::{Verifier, VerifierOptions};
use postern_core::trace::Tracer;
use postern_service::calls::ServiceClient;
use postern_service::trace::SpanExportTask;
use postern_store::cache::Cache;

use crate::config::Config;
use crate::delivery::actors::{ActorClient, UserAddressPolicy};
use crate::delivery::mail_token::KEY_VARIABLE;
use crate::delivery::pool::{ProviderConfig, ProviderDescription, ProviderPool, ProviderSettings};
use crate::dispatch::DispatchState;
use crate::housekeeping::TemplateReloader;
use crate::metrics::NotifyMetrics;
use crate::notification::PerChannel;
use crate::templates::{Templates, fingerprint};

pub(super) fn verifier(config: &Config, clock: &Clock) -> Arc<Verifier> {
    let options = VerifierOptions {
        clock: clock.clone(),
        limits: config.identity.token_limits,
        ..VerifierOptions::default()
    };
    Verifier::new(config.identity.issuers(), options)
}

/// Creates the tracer, if `[tracing]` is configured.
pub(super) fn build_tracer(
    config: &Config,
    clock: &Clock,
    metrics: &NotifyMetrics,
) -> Result<(Option<Tracer>, Option<SpanExportTask>), Exit> {
    let dropped = &metrics.events.spans_dropped;
    postern_service::trace::tracer(config.tracing.as_ref(), "postern-notify", clock, dropped)
}

/// Builds the configured providers, and what the admin routes know of them.
pub(super) fn build_providers(
    config: &mut Config,
    cache: &Cache,
    clock: &Clock,
    metrics: &NotifyMetrics,
) -> Result<(Arc<ProviderPool>, Arc<[ProviderDescription]>), Exit> {
    let descriptions = config
        .providers
        .iter()
        .map(|provider| provider.description.clone());
    let descriptions = descriptions.collect();
    let providers = std::mem::take(&mut config.providers);
    let permits = &config.queue.permits();
    let pool = ProviderPool::build(providers, permits, cache, clock, metrics)?;
    Ok((Arc::new(pool), descriptions))
}

/// Creates the state that intake and dispatch share.
pub(super) fn dispatch_state(
    config: &Config,
    descriptions: &[ProviderDescription],
) -> DispatchState {
    let calls = PerChannel::from_fn(|channel| {
        let of_channel = descriptions.iter().filter(|it| it.channel == channel);
        of_channel.map(|provider| provider.concurrency).sum()
    });
    DispatchState::new(&config.queue.permits(), &calls)
}

/// Creates the client of the actor service.
pub(super) fn actor_client(
    config: &Config,
    service_client: &ServiceClient,
    metrics: &NotifyMetrics,
) -> ActorClient {
    let address_policy = UserAddressPolicy {
        anyone: config.users_may_address_anyone,
        unverified: config.unverified_addresses,
    };
    ActorClient::new(
        config.actor_service.clone(),
        service_client.clone(),
        address_policy,
        &metrics.dependencies,
    )
}

/// Loads the templates and creates the task that reloads them.
pub(super) fn load_templates(
    config: &Config,
    metrics: &NotifyMetrics,
) -> Result<(Arc<ArcSwap<Templates>>, TemplateReloader), Exit> {
    let (folder, default_locale) = (&config.templates.folder, &config.templates.default_locale);
    // The fingerprint is taken before the files are read, so that a concurrent change is noticed.
    let seen = Some(fingerprint(folder));
    let templates = Templates::load(folder, default_locale.clone()).map_err(Exit::usage)?;
    let templates = Arc::new(ArcSwap::from_pointee(templates));
    metrics.events.template_reload_successful.set(1);
    let reloader = TemplateReloader {
        folder: folder.clone(),
        default_locale: default_locale.clone(),
        templates: Arc::clone(&templates),
        seen,
        is_successful: metrics.events.template_reload_successful.clone(),
        rejection: metrics.health.degradation("templates"),
    };
    Ok((templates, reloader))
}

/// Warns if e-mail providers are configured for unsubscribe links or delivery reports that need a
/// missing key.
pub(super) fn warn_without_mail_tokens(config: &Config) {
    if let Some(provider) = provider_without_mail_tokens(config) {
        tracing::warn!(
            provider,
            variable = KEY_VARIABLE,
            "mail token key not set, no one-click unsubscription and no delivery reports by mail"
        );
    }
}

/// Returns the first e-mail provider that is configured for unsubscribe links or delivery reports
/// although the key for their tokens is missing.
pub(crate) fn provider_without_mail_tokens(config: &Config) -> Option<&str> {
    let needs = |provider: &&ProviderConfig| {
        matches!(&provider.settings, ProviderSettings::Smtp(smtp)
            if smtp.unsubscribe.is_some() || smtp.return_path.is_some())
    };
    let found = config.providers.iter().find(needs);
    let found = found.filter(|_| config.mail_tokens.is_none());
    found.map(|provider| provider.description.name.as_str())
}
