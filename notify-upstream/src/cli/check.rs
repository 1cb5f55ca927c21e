//! The command `check`: the configuration with the files that it names, and the database.

use std::path::Path;

use postern_common::Clock;
use postern_common::check::CheckResult;
use postern_common::config::{Env, load};
use postern_common::database::{ConnectionBudget, Database, DatabaseOptions};
use postern_common::decode::Object;
use postern_common::exit::Exit;
use postern_common::identity::ASSUMED_IDENTITY;

use crate::Config;
use crate::app::provider_without_mail_tokens;
use crate::delivery::mail_token::KEY_VARIABLE;
use crate::notification::{Channel, ShardNumber};
use crate::store::Store;
use crate::templates::Templates;

/// Connections of the check to the tables of a database.
const CHECK_CONNECTIONS: u32 = 1;

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
    let without_provider = Channel::ALL.into_iter().filter(|channel| {
        let mut variants = templates.variants();
        !providers.contains(channel) && variants.any(|(_, of, _)| of == *channel)
    });
    results.extend(without_provider.map(|channel| {
        let detail = "has templates and no provider: its notifications wait until they fail";
        CheckResult::warning(format!("channel {}", channel.as_str()), detail)
    }));
    results.extend(without_mail_tokens.map(|name| {
        let detail =
            format!("{KEY_VARIABLE} is not set: no unsubscription and no delivery reports by mail");
        CheckResult::warning(format!("provider {name}"), detail)
    }));
    results.extend(CheckResult::of_unshared_cache(
        config.database.first_url(),
        &config.cache,
    ));
    if !is_offline {
        results.extend(check_databases(&config).await?);
    }
    Ok(results)
}

/// A configuration whose files have been read.
struct Checked {
    config: Config,
    templates: Templates,
    /// The channels of the providers, in the order of the file.
    providers: Vec<Channel>,
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
        for (at, provider) in std::mem::take(&mut config.providers)
            .into_iter()
            .enumerate()
        {
            providers.push(provider.channel);
            if let Err(reason) = provider.build_unused(clock) {
                root.fail_at(&format!("provider.{at}"), "invalid_file", reason);
            }
        }
        let (folder, locale) = (&config.templates.folder, &config.templates.default_locale);
        let loaded = match folder.is_dir() {
            true => Templates::load(folder, locale.clone()),
            false => Err(format!("{}: there is no such folder", folder.display())),
        };
        let templates = match loaded {
            Ok(templates) => Some(templates),
            Err(mistakes) => {
                for mistake in mistakes.lines() {
                    root.fail_at("templates.folder", "invalid_template", mistake);
                }
                None
            }
        };
        Some(Self {
            config,
            templates: templates?,
            providers,
            without_mail_tokens,
        })
    }
}

/// Checks the databases of all shards.
async fn check_databases(config: &Config) -> Result<Vec<CheckResult>, Exit> {
    let urls = &config.database.shards;
    let mut results = Vec::new();
    for (number, url) in (0..=ShardNumber::MAX).zip(urls) {
        let name = match urls.len() {
            1 => "database".to_owned(),
            _ => format!("database {number}"),
        };
        // The connections of all shards of a server add up.
        let server = server_of(url);
        let of_server = urls.iter().filter(|other| server_of(other) == server);
        let shards = u32::try_from(of_server.count()).unwrap_or(u32::MAX);
        let budget = config.connection_budget(shards);
        results.extend(check_database(&name, (number, url), &budget).await?);
    }
    Ok(results)
}

/// Returns the part of a URL that names the server.
fn server_of(url: &str) -> &str {
    let address = url.split_once("://").map_or(url, |(_, address)| address);
    let address = address.split(['/', '?']).next().unwrap_or(address);
    address
        .rsplit_once('@')
        .map_or(address, |(_, address)| address)
}

async fn check_database(
    name: &str,
    (number, url): (ShardNumber, &str),
    budget: &ConnectionBudget,
) -> Result<Vec<CheckResult>, Exit> {
    let opened = Database::open(url, DatabaseOptions::new("postern-notify-cli")).await;
    let database = match opened {
        Ok(database) => database,
        Err(exit) if exit.is_usage() => return Err(exit),
        Err(exit) => return Ok(vec![CheckResult::fault(name, exit.message())]),
    };
    // A new database has no tables yet.
    let answer = database.ping().await;
    let answer = answer.map(|()| format!("{} answers", database.label()));
    let mut results = vec![CheckResult::new(
        name,
        answer.map_err(|error| error.to_string()),
    )];
    // Without tables the database has not been used as any shard.
    let store = Store::unmigrated(&database, CHECK_CONNECTIONS);
    match store.check_shard(number, &database.label()).await {
        Err(exit) if exit.is_usage() => return Err(exit),
        Ok(()) | Err(_) => {}
    }
    if let Some(report) = database.compare_budget(budget).await {
        let name = format!("{name} connections");
        results.push(match report.is_exceeded() {
            true => CheckResult::warning(name, report.text),
            false => CheckResult::passed(name, report.text),
        });
    }
    let warning = database.transport_warning();
    results.extend(warning.map(|text| CheckResult::warning(name, text)));
    Ok(results)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_is_host_and_port() {
        for url in [
            "postgres://u:p@db-0:5432/notify",
            "postgres://db-0:5432",
            "postgresql://u@db-0:5432?sslmode=require",
        ] {
            assert_eq!(server_of(url), "db-0:5432");
        }
    }
}
