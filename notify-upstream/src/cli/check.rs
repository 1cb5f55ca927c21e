//! The command `check`: the configuration with the files that it names, and the database.

use std::path::Path;

use postern_core::Clock;
use postern_core::check::CheckResult;
use postern_core::config::{Env, load};
use postern_core::decode::Object;
use postern_core::exit::Exit;
use postern_core::identity::ASSUMED_IDENTITY;
use postern_service::calls::ServiceTokens;
use postern_store::cache::Cache;
use postern_store::database::{Database, DatabaseOptions};

use crate::Config;
use crate::app::provider_without_mail_tokens;
use crate::delivery::mail_token::KEY_VARIABLE;
use crate::delivery::pool::ProviderConfig;
use crate::delivery::provider::{Provider, ProviderRefusal};
use crate::notification::Channel;
use crate::templates::Templates;

/// Checks a configuration, and the database unless `is_offline`. The identity variables are not
/// needed.
///
/// # Errors
/// Exit status 64, with one line per mistake: file, line, key and reason.
pub(super) async fn run(path: &Path, is_offline: bool) -> Result<Vec<CheckResult>, Exit> {
    let env = Env::of_process().assuming(&ASSUMED_IDENTITY);
    let Checked {
        config,
        templates,
        providers,
        without_mail_tokens,
    } = load(path, |root| Checked::read(root, &env, &Clock::system()))?;
    let count = providers.len();
    let good = format!("{}: good: {count} providers", path.display());
    let folder = config.templates.folder.display();
    let mut results = vec![
        CheckResult::passed("configuration", good),
        CheckResult::passed("templates", format!("{} in {folder}", templates.len())),
    ];
    results.extend(CheckResult::of_assumed(&config.identity.assumed_settings()));
    for channel in Channel::ALL {
        let has_provider = providers.iter().any(|(_, of, _)| *of == channel);
        if !has_provider && templates.have_channel(channel) {
            let detail = "has templates and no provider: its notifications wait until they fail";
            results.push(CheckResult::warning(
                format!("channel {}", channel.as_str()),
                detail,
            ));
        }
    }
    results.extend(without_mail_tokens.map(|name| {
        let detail =
            format!("{KEY_VARIABLE} is not set: no unsubscription and no delivery reports by mail");
        CheckResult::warning(format!("provider {name}"), detail)
    }));
    let unshared = CheckResult::of_unshared_cache(&config.database, &config.cache);
    results.extend(unshared);
    for (name, text) in templates.warnings() {
        results.push(CheckResult::warning(
            format!("template {name}"),
            text.as_str(),
        ));
    }
    if !is_offline {
        results.extend(check_database(&config).await?);
        results.extend(check_environment(&config, &providers).await?);
    }
    Ok(results)
}

/// Tries what the service calls besides its database.
async fn check_environment(
    config: &Config,
    providers: &[(String, Channel, Provider)],
) -> Result<Vec<CheckResult>, Exit> {
    let cache = Cache::open(&config.cache, &Clock::system())?;
    let mut results = vec![cache.check().await];
    if config.identity.assumed_settings().is_empty() {
        let tokens = ServiceTokens::new(&config.identity, Clock::system());
        results.push(tokens.check().await);
    }
    for (name, _, provider) in providers {
        let subject = format!("provider {name}");
        let outcome = Box::pin(provider.probe()).await;
        results.extend(outcome.map(|outcome| {
            let reason = |refusal: ProviderRefusal| refusal.detail.unwrap_or(refusal.code);
            CheckResult::new(subject, outcome.map(str::to_owned).map_err(reason))
        }));
    }
    Ok(results)
}

/// A configuration whose files have been read.
struct Checked {
    config: Config,
    templates: Templates,
    /// The name, the channel and the provider, built and not called, in the order of the file.
    providers: Vec<(String, Channel, Provider)>,
    /// An e-mail provider that needs the missing key of tokens.
    without_mail_tokens: Option<String>,
}

// === impl Checked ===

impl Checked {
    /// Reads the configuration, its templates and the keys of its providers, and records every
    /// mistake at the key that names the file.
    fn read(root: &Object<'_>, env: &Env, clock: &Clock) -> Option<Self> {
        let mut config = Config::read(root, env)?;
        // With other mistakes, list positions differ from those of the file.
        if !root.is_good() {
            return None;
        }
        let without_mail_tokens = provider_without_mail_tokens(&config).map(str::to_owned);
        let mut providers = Vec::new();
        let configured = std::mem::take(&mut config.providers);
        for (
            at,
            ProviderConfig {
                description,
                settings,
            },
        ) in configured.into_iter().enumerate()
        {
            match settings.build(clock) {
                Ok(provider) => providers.push((description.name, description.channel, provider)),
                Err(reason) => root.fail_at(&format!("provider.{at}"), "invalid_file", reason),
            }
        }
        let (folder, locale) = (&config.templates.folder, &config.templates.default_locale);
        let loaded = Templates::load(folder, locale.clone());
        let templates = loaded.map_err(|mistakes| {
            for mistake in mistakes.lines() {
                root.fail_at("templates.folder", "invalid_template", mistake);
            }
        });
        Some(Self {
            config,
            templates: templates.ok()?,
            providers,
            without_mail_tokens,
        })
    }
}

async fn check_database(config: &Config) -> Result<Vec<CheckResult>, Exit> {
    let name = "database";
    let opened = Database::open(&config.database, DatabaseOptions::new("postern-notify-cli")).await;
    let database = match opened {
        Ok(database) => database,
        Err(exit) if exit.is_usage() => return Err(exit),
        Err(exit) => return Ok(vec![CheckResult::fault(name, exit.message())]),
    };
    // A new database has no tables yet.
    let answer = database.ping().await.map_err(|error| error.to_string());
    let answer = answer.map(|()| format!("{} answers", database.label()));
    let mut results = vec![CheckResult::new(name, answer)];
    let warning = database.transport_warning();
    results.extend(warning.map(|text| CheckResult::warning(name, text)));
    Ok(results)
}
