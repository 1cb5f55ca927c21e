//! Provider settings, and construction of the pool from them.

use std::path::PathBuf;

use postern_core::Clock;
use postern_core::exit::Exit;
use postern_store::cache::Cache;

use super::{
    PooledProvider, PriorityLimiter, ProviderCircuitBreaker, ProviderPool, ProviderRate,
    ProviderStatus, ShareLimiter,
};
use crate::delivery::provider::{
    ErrorCodeTable, FcmAccount, FcmProvider, FileProvider, HttpConfig, HttpProvider, Provider,
    SmtpConfig, SmtpProvider, TwilioConfig, TwilioProvider, VapidKey, WebPushProvider,
};
use crate::metrics::NotifyMetrics;
use crate::notification::{Channel, PerChannel};

/// A `[[provider]]` table.
#[derive(Debug)]
pub(crate) struct ProviderConfig {
    /// Name in events and metrics: 1 to 32 of `a-z 0-9 - _`.
    pub(crate) name: String,
    /// The channel that it serves.
    pub(crate) channel: Channel,
    /// Load balancing weight among the providers of the channel. Default 1.
    pub(crate) weight: u32,
    /// Maximum number of concurrent calls. Default 64.
    pub(crate) concurrency: usize,
    /// Maximum number of calls per second over all replicas, evenly spaced; the highest priority
    /// goes first. Default unlimited.
    pub(crate) rate: Option<u64>,
    pub(crate) provider: ProviderSettings,
}

/// Type and settings of a provider.
#[derive(Debug)]
pub(crate) enum ProviderSettings {
    /// A mail server.
    Smtp(Box<SmtpConfig>),
    /// The Twilio API.
    Twilio(TwilioConfig),
    /// A generic HTTP API.
    Http(HttpConfig),
    /// Firebase Cloud Messaging.
    Fcm(FcmAccount),
    /// Web Push services of browsers.
    WebPush(VapidKey),
    /// Files in a folder, for development.
    File(PathBuf),
    /// Discards messages, for benchmarks. Only configured explicitly with `kind = "null"`.
    Null,
}

// === impl ProviderConfig ===

impl ProviderConfig {
    /// Builds the provider as the service does. It is not called.
    ///
    /// # Errors
    /// The reason, for an invalid certificate, key or template.
    pub(crate) fn build_unused(self, clock: &Clock) -> Result<Provider, String> {
        build(self.provider, clock, &ErrorCodeTable::shipped())
    }
}

// === impl ProviderPool ===

impl ProviderPool {
    /// Builds the configured providers. `permits` are the permits of each channel. No provider is
    /// called.
    ///
    /// # Errors
    /// Exit code 64 for an invalid certificate, key or template.
    pub(crate) fn build(
        configured: Vec<ProviderConfig>,
        permits: &PerChannel<usize>,
        cache: &Cache,
        clock: &Clock,
        metrics: &NotifyMetrics,
    ) -> Result<Self, Exit> {
        let codes = ErrorCodeTable::shipped();
        let mut channels: PerChannel<Vec<PooledProvider>> = PerChannel::default();
        for ProviderConfig {
            name,
            channel,
            weight,
            concurrency,
            rate,
            provider,
        } in configured
        {
            let provider = build(provider, clock, &codes)
                .map_err(|error| Exit::usage(format!("provider `{name}`: {error}")))?;
            let rate = rate.map(|rate| ProviderRate::new(cache.clone(), &name, rate));
            let status = ProviderStatus::new(channel, &name, metrics);
            channels.get_mut(channel).push(PooledProvider {
                status,
                name,
                provider,
                weight,
                limiter: PriorityLimiter::new(concurrency, rate),
                shares: ShareLimiter::new(concurrency.min(*permits.get(channel))),
                breaker: ProviderCircuitBreaker::new(clock.clone()),
            });
        }
        Ok(Self::new(channels, codes))
    }
}

fn build(
    config: ProviderSettings,
    clock: &Clock,
    codes: &ErrorCodeTable,
) -> Result<Provider, String> {
    let codes = codes.clone();
    Ok(match config {
        ProviderSettings::Smtp(config) => {
            Provider::Smtp(Box::new(SmtpProvider::new(*config, codes)?))
        }
        ProviderSettings::Twilio(config) => {
            Provider::Twilio(Box::new(TwilioProvider::new(config, codes)?))
        }
        ProviderSettings::Http(config) => {
            Provider::Http(Box::new(HttpProvider::new(config, codes)?))
        }
        ProviderSettings::Fcm(account) => {
            Provider::Fcm(Box::new(FcmProvider::new(account, clock.clone(), codes)?))
        }
        ProviderSettings::WebPush(key) => {
            Provider::WebPush(Box::new(WebPushProvider::new(key, clock.clone(), codes)?))
        }
        ProviderSettings::File(folder) => Provider::File(FileProvider::new(folder)),
        ProviderSettings::Null => Provider::Null,
    })
}
