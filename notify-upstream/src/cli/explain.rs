//! The command `explain`: what happens to a request, without sending anything.

use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;
use postern_common::clock::Timestamp;
use postern_common::config::Env;
use postern_common::decode::{self, Mistakes};
use postern_common::exit::Exit;
use postern_common::identity::ASSUMED_IDENTITY;
use postern_common::output::Explanation;
use postern_common::{Clock, Problem};

use super::{open_database, read_config};
use crate::Config;
use crate::address::{Address, Recipient};
use crate::delivery::pool::{ProviderDescription, caller_share};
use crate::delivery::retry::RetryPolicy;
use crate::delivery::suppression::SuppressionList;
use crate::intake::request::{NotificationRequest, ValidatedRequest};
use crate::notification::{Channel, Priority};
use crate::operations::suppression::{SuppressionView, kinds};
use crate::principal::Principal;
use crate::store::SuppressionQuery;
use crate::templates::{AmbiguityPolicy, FoundTemplate, Locale, Templates};

/// Maximum bytes of a request: those of the API.
const MAX_REQUEST_BYTES: u64 = 1 << 20;

/// Maximum number of entries of the suppression lists that are printed.
const MAX_SUPPRESSIONS: i64 = 10;

/// A request to explain.
#[derive(Debug, Args)]
pub(crate) struct ExplainArguments {
    /// File with the body of POST /notifications; - for standard input.
    #[arg(default_value = "-")]
    request: PathBuf,
    /// Caller: user (the actor whom the request addresses), user:SUBJECT or service:NAME.
    #[arg(long, default_value = "service:explain")]
    caller: String,
    /// Look the address up in the suppression lists of the database.
    #[arg(long)]
    database: bool,
}

/// What decides on a request.
struct Explainer<'a> {
    config: &'a Config,
    templates: &'a Templates,
    principal: &'a Principal,
}

/// Explains a request with the configuration and the templates, as the service would decide now. The
/// identity variables are not needed.
///
/// # Errors
/// Exit status 64 for a wrong configuration, template or argument; 69 if the request cannot be read or
/// the database is unavailable.
pub(super) async fn run(path: &Path, arguments: &ExplainArguments) -> Result<Explanation, Exit> {
    let mut config = read_config(path, &Env::of_process().assuming(&ASSUMED_IDENTITY))?;
    let (folder, locale) = (&config.templates.folder, &config.templates.default_locale);
    let templates = Templates::load(folder, locale.clone()).map_err(Exit::usage)?;
    let (body, clock) = (read_body(&arguments.request)?, Clock::system());
    let mut explanation = Explanation::default();
    let request = match parse(&body, clock.now()) {
        Ok(request) => request,
        Err(problem) => {
            write_problem(&mut explanation, &problem);
            return Ok(explanation);
        }
    };
    let principal = principal(&arguments.caller, &request, &config)?;
    let recipient = request.recipient.clone();
    let channel = request.channel;
    write_request(&mut explanation, &request, &principal);
    let explainer = Explainer {
        config: &config,
        templates: &templates,
        principal: &principal,
    };
    let validated = match explainer.validate(request) {
        Ok(validated) => validated,
        Err(problem) => {
            write_problem(&mut explanation, &problem);
            return Ok(explanation);
        }
    };
    explainer.write_acceptance(&mut explanation, &validated, clock.now());
    let unsubscribable = explainer.write_template(&mut explanation, &validated);
    explainer.write_address(&mut explanation, &recipient, channel);
    if let (true, Recipient::Address(address)) = (arguments.database, &recipient) {
        write_suppressions(&mut explanation, &config.database, address, unsubscribable).await?;
    }
    write_providers(
        &mut explanation,
        &mut config,
        &principal,
        &recipient,
        channel,
    )?;
    write_attempts(&mut explanation, &validated.request);
    Ok(explanation)
}

fn read_body(path: &Path) -> Result<Vec<u8>, Exit> {
    let unreadable = |error| Exit::unavailable(format!("{}: cannot read: {error}", path.display()));
    let mut body = Vec::new();
    let read = if path == Path::new("-") {
        std::io::stdin()
            .lock()
            .take(MAX_REQUEST_BYTES)
            .read_to_end(&mut body)
    } else {
        let file = std::fs::File::open(path).map_err(unreadable)?;
        file.take(MAX_REQUEST_BYTES).read_to_end(&mut body)
    };
    read.map_err(unreadable)?;
    Ok(body)
}

fn parse(body: &[u8], now: Timestamp) -> Result<NotificationRequest, Problem> {
    let mistakes = Mistakes::default();
    let node = decode::json(body, &mistakes);
    let read = |object: &decode::Object<'_>| NotificationRequest::read(object, now);
    let request = node.and_then(|node| mistakes.object(&node, read));
    mistakes.finish(request).map_err(Problem::from_mistakes)
}

/// Returns the principal of a caller. Users belong to the actor pool.
fn principal(
    caller: &str,
    request: &NotificationRequest,
    config: &Config,
) -> Result<Principal, Exit> {
    let issuer = &config.identity.actor.issuer;
    let user = |subject: &str| Principal {
        creator: format!("user:{issuer}|{subject}").into(),
        actor: Some(subject.to_owned()),
    };
    let addressee = || request.addressee().map_or("user", |actor| actor.as_str());
    match caller.split_once(':') {
        None if caller == "user" => Ok(user(addressee())),
        Some(("user", subject)) if !subject.is_empty() => Ok(user(subject)),
        Some(("service", name)) if !name.is_empty() => Ok(Principal {
            creator: caller.into(),
            actor: None,
        }),
        _ => Err(Exit::usage(
            "--caller must be user, user:SUBJECT or service:NAME",
        )),
    }
}

/// Describes a request. Addresses and variables are not repeated.
fn write_request(
    explanation: &mut Explanation,
    request: &NotificationRequest,
    principal: &Principal,
) {
    let (channel, kind) = (request.channel.as_str(), request.recipient.kind());
    let template = request.template.as_str();
    let detail = format_args!("{template} on {channel} to recipient.{kind}");
    explanation.line("request", detail);
    let caller = match &principal.actor {
        Some(subject) => format!("user {subject}"),
        None => principal.creator.replacen(':', " ", 1),
    };
    explanation.line("caller", caller);
}

fn write_problem(explanation: &mut Explanation, problem: &Problem) {
    let (status, code) = (problem.code().status().as_u16(), problem.code());
    let detail = format_args!("{status} {}: {}", code.as_str(), code.title());
    explanation.line("decision", detail);
    let document = problem.to_json("");
    if let Some(detail) = document["detail"].as_str() {
        explanation.line("why", detail);
    }
    for error in document["errors"].as_array().into_iter().flatten() {
        let text = |name: &str| error[name].as_str().unwrap_or_default();
        let detail = format_args!("{}: {} ({})", text("pointer"), text("detail"), text("code"));
        explanation.line("why", detail);
    }
}

// === impl Explainer ===

impl Explainer<'_> {
    /// Decides as the service does.
    fn validate(&self, request: NotificationRequest) -> Result<ValidatedRequest, Problem> {
        let (config, principal) = (self.config, self.principal);
        principal.authorize_recipient(&request.recipient, config.users_may_address_anyone)?;
        principal.authorize_priority(request.priority, config.users_may_send_urgent)?;
        request.check(self.templates, Principal::author(&principal.creator))
    }

    fn write_acceptance(
        &self,
        explanation: &mut Explanation,
        validated: &ValidatedRequest,
        now: Timestamp,
    ) {
        let ValidatedRequest { request, .. } = validated;
        explanation.line("decision", "201 QUEUED");
        let is_user = Principal::is_user(&self.principal.creator);
        let (limit, of) = match is_user {
            true => (self.config.user_quota, "user"),
            false => (self.config.service_quota, "service"),
        };
        match limit {
            Some(limit) => {
                let detail = format_args!("{limit} per minute for each {of}, over all replicas");
                explanation.line("quota", detail);
            }
            None => explanation.line("quota", format_args!("unlimited for a {of}")),
        }
        let (channel, priority) = (request.channel, request.priority);
        let before = &Priority::ALL[..priority.index()];
        let before: Vec<&str> = before.iter().map(|it| it.as_str()).collect();
        let order = match before.is_empty() {
            true => "before all other priorities".to_owned(),
            false => format!("after {}", before.join(", ")),
        };
        let (channel_name, priority_name) = (channel.as_str(), priority.as_str());
        let permits = self.config.queue.permits.get(channel);
        explanation.line(
            "lane",
            format_args!(
                "{channel_name} {priority_name}: {order}; at most {permits} concurrent deliveries of {channel_name}"
            ),
        );
        if let Some(at) = request.send_at.filter(|at| *at > now) {
            explanation.line("scheduled", at);
        }
        if let Some(at) = request.expires_at {
            explanation.line("expires", at);
        }
    }

    /// Describes the template that is used, and returns whether it offers to unsubscribe.
    fn write_template(&self, explanation: &mut Explanation, validated: &ValidatedRequest) -> bool {
        let ValidatedRequest {
            request,
            template_version,
            locale,
        } = validated;
        let requested = request.locale.as_ref().map(Locale::as_str);
        let requested = requested.unwrap_or("none");
        let name = request.template.as_str();
        let detail = format_args!(
            "{name}, version {template_version}, locale {} (requested: {requested})",
            locale.as_str()
        );
        explanation.line("template", detail);
        let found = self
            .templates
            .find(&request.template, request.channel, Some(locale));
        let Ok(settings) = found.as_ref().map(FoundTemplate::settings) else {
            return false;
        };
        let unsubscribe = settings.unsubscribe && request.channel == Channel::Email;
        if unsubscribe {
            explanation.line("", "recipients can unsubscribe with one click");
        }
        explanation.line(
            "",
            match settings.ambiguous {
                AmbiguityPolicy::Resend => "sent again if it is unknown whether a provider has it",
                AmbiguityPolicy::Fail => "fails if it is unknown whether a provider has it",
            },
        );
        if *settings.unverified_addresses.get(request.channel) {
            explanation.line("", "users may have it sent to an unverified address");
        }
        settings.unsubscribe
    }

    fn write_address(
        &self,
        explanation: &mut Explanation,
        recipient: &Recipient,
        channel: Channel,
    ) {
        if let Recipient::Address(_) = recipient {
            explanation.line("address", "given in the request");
            return;
        }
        let url = &self.config.actor_service;
        let detail = format_args!("asked from {url} at each delivery attempt");
        explanation.line("address", detail);
        let config = self.config;
        if Principal::is_user(&self.principal.creator)
            && !config.users_may_address_anyone
            && !config.unverified_addresses.get(channel)
        {
            explanation.line("", "must be verified, because the caller is a user");
        }
    }
}

/// Describes the entries of an address in the suppression lists.
async fn write_suppressions(
    explanation: &mut Explanation,
    database: &str,
    address: &Address,
    unsubscribable: bool,
) -> Result<(), Exit> {
    let query = SuppressionQuery {
        kinds: kinds(None, Some(address.channel())),
        address: Some(address.hash()),
        limit: MAX_SUPPRESSIONS,
        ..SuppressionQuery::default()
    };
    let store = open_database(database).await?;
    let entries = store.suppression_entries(&query).await;
    let entries = entries.map_err(|error| Exit::unavailable(error.to_string()))?;
    if entries.is_empty() {
        explanation.line("suppressed", "no");
    }
    for entry in entries.iter().map(SuppressionView::from) {
        let list = entry.list.unwrap_or("-");
        let effect = if list == SuppressionList::Suppressed.as_str() {
            "fails with address_suppressed"
        } else if unsubscribable {
            "fails with recipient_unsubscribed"
        } else {
            "no effect: the template does not offer to unsubscribe"
        };
        let (at, reason) = (entry.at, &entry.reason);
        let detail = format_args!("{list} since {at} ({reason}): {effect}");
        explanation.line("suppressed", detail);
    }
    Ok(())
}

/// Describes the providers of the channel that can deliver to the address. Which addresses an actor
/// has is not known.
fn write_providers(
    explanation: &mut Explanation,
    config: &mut Config,
    principal: &Principal,
    recipient: &Recipient,
    channel: Channel,
) -> Result<(), Exit> {
    let clock = Clock::system();
    let mut suitable = Vec::new();
    let providers = std::mem::take(&mut config.providers).into_iter();
    for provider in providers.filter(|it| it.channel == channel) {
        let description = ProviderDescription::of(&provider);
        let built = provider.build_unused(&clock);
        let name = &description.name;
        let built = built.map_err(|reason| Exit::usage(format!("provider `{name}`: {reason}")))?;
        let supports = match recipient {
            Recipient::Address(address) => built.supports(address),
            Recipient::ActorId(_) => true,
        };
        if supports {
            suitable.push(description);
        } else {
            let kind = recipient.kind();
            explanation.line("skipped", format_args!("{name}: not for a {kind}"));
        }
    }
    if suitable.is_empty() {
        let detail =
            "none for this address: attempts fail with no_provider until one is configured";
        explanation.line("provider", detail);
    }
    let weights: u32 = suitable.iter().map(|it| it.weight.max(1)).sum();
    let permits = *config.queue.permits.get(channel);
    for provider in &suitable {
        let percent = f64::from(provider.weight.max(1)) * 100.0 / f64::from(weights);
        let total = provider.concurrency.min(permits);
        let share = caller_share(total, &principal.creator);
        let rate = provider.rate;
        let rate = rate.map_or_else(String::new, |rate| format!(", {rate} per second"));
        explanation.line(
            "provider",
            format_args!(
                "{} ({}): {percent:.0} % of the first attempts; {total} concurrent calls, {share} of this caller and priority{rate}",
                provider.name, provider.kind
            ),
        );
    }
    Ok(())
}

fn write_attempts(explanation: &mut Explanation, request: &NotificationRequest) {
    let policy = RetryPolicy::of(request.priority);
    let hours = policy.window.as_secs() / 3600;
    let (attempts, first) = (policy.attempts, policy.backoff.initial);
    let detail = format_args!(
        "at most {attempts} within {hours} h; the second within {first:?} of the first"
    );
    explanation.line("attempts", detail);
}
