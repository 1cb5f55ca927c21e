//! Provider settings, and construction of the pool from them.

use std::path::PathBuf;

use postern_core::Clock;
use postern_core::exit::Exit;
use postern_store::cache::Cache;

use super::{
    PooledProvider, PriorityLimiter, ProviderCircuitBreaker, ProviderDescription, ProviderPool,
    ProviderRate, ProviderStatus, ShareLimiter,
};
use crate::delivery::provider::{
    FcmAccount, FcmProvider, FileProvider, HttpConfig, HttpProvider, Provider, SmtpConfig,
    SmtpProvider, TwilioConfig, TwilioProvider, VapidKey, WebPushProvider,
};
use crate::metrics::NotifyMetrics;
use crate::notification::PerChannel;

/// A `[[provider]]` table.
#[derive(Debug)]
pub(crate) struct ProviderConfig {
    pub(crate) description: ProviderDescription,
    pub(crate) settings: ProviderSettings,
}

/// Type and settings of a provider.
#[derive(Debug)]
pub(crate) enum ProviderSettings {
    Smtp(Box<SmtpConfig>),
    Twilio(TwilioConfig),
    Http(HttpConfig),
    Fcm(FcmAccount),
    /// Web Push services of browsers.
    WebPush(VapidKey),
    File(PathBuf),
    /// Discards messages, for benchmarks. Only configured explicitly with `kind = "null"`.
    Null,
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
        let mut channels: PerChannel<Vec<PooledProvider>> = PerChannel::default();
        for config in configured {
            let ProviderDescription {
                name,
                channel,
                weight,
                concurrency,
                rate,
                kind: _,
            } = config.description;
            let provider = config.settings.build(clock);
            let provider =
                provider.map_err(|error| Exit::usage(format!("provider `{name}`: {error}")))?;
            let rate = rate.map(|rate| ProviderRate::new(cache.clone(), &name, rate));
            channels.get_mut(channel).push(PooledProvider {
                status: ProviderStatus::new(channel, &name, metrics),
                name,
                provider,
                weight,
                limiter: PriorityLimiter::new(concurrency, rate),
                shares: ShareLimiter::new(concurrency.min(*permits.get(channel))),
                breaker: ProviderCircuitBreaker::new(clock.clone()),
            });
        }
        Ok(Self { channels })
    }
}

// === impl ProviderSettings ===

impl ProviderSettings {
    /// Builds the provider. It is not called.
    ///
    /// # Errors
    /// The reason, for an invalid certificate, key or template.
    pub(crate) fn build(self, clock: &Clock) -> Result<Provider, String> {
        Ok(match self {
            Self::Smtp(config) => Provider::Smtp(Box::new(SmtpProvider::new(*config)?)),
            Self::Twilio(config) => Provider::Twilio(Box::new(TwilioProvider::new(config)?)),
            Self::Http(config) => Provider::Http(Box::new(HttpProvider::new(config)?)),
            Self::Fcm(account) => {
                Provider::Fcm(Box::new(FcmProvider::new(account, clock.clone())?))
            }
            Self::WebPush(key) => {
                Provider::WebPush(Box::new(WebPushProvider::new(key, clock.clone())?))
            }
            Self::File(folder) => Provider::File(FileProvider { folder }),
            Self::Null => Provider::Null,
        })
    }
}
