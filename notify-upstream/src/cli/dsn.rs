//! The command that reads a delivery status notification from standard input.

use std::io::Read;

use postern_core::Clock;
use postern_core::exit::Exit;
use postern_core::output::Output;
use serde_json::json;

use crate::Config;
use crate::config::TemplateConfig;
use crate::delivery::mail_token::KEY_VARIABLE;
use crate::delivery::suppression::Suppression;
use crate::receipts::dsn;
use crate::templates::Templates;

use super::open;

/// Maximum number of bytes read from a message. The report precedes the returned message.
const MAX_MESSAGE_BYTES: u64 = 128 * 1024;

/// Reads one message from standard input and stores its reports. A message without a report of this
/// service is accepted and discarded, because bouncing it would serve no purpose. Failures exit
/// with `EX_TEMPFAIL`, so that the mail server keeps the message and retries. The number of reports
/// stored per notification is bounded (`MAX_RECEIPTS_PER_NOTIFICATION`), because a recipient can
/// repeat a report with other bytes.
pub(super) async fn run(config: Result<Config, Exit>, output: Output) -> Result<(), Exit> {
    let mail = read_mail().map_err(|error| Exit::unavailable(format!("standard input: {error}")));
    store_reports(config, mail, output)
        .await
        .map_err(Exit::temporary)
}

fn read_mail() -> std::io::Result<Vec<u8>> {
    let (mut mail, mut input) = (Vec::new(), std::io::stdin().lock());
    input
        .by_ref()
        .take(MAX_MESSAGE_BYTES)
        .read_to_end(&mut mail)?;
    // The rest is read so that the writer does not get a broken pipe.
    std::io::copy(&mut input, &mut std::io::sink())?;
    Ok(mail)
}

async fn store_reports(
    config: Result<Config, Exit>,
    mail: Result<Vec<u8>, Exit>,
    output: Output,
) -> Result<(), Exit> {
    let (config, mail, clock) = (config?, mail?, Clock::system());
    let now = clock.now();
    let Some(tokens) = &config.mail_tokens else {
        return Err(Exit::usage(format!(
            "{KEY_VARIABLE} is not set: delivery reports cannot be verified"
        )));
    };
    let discard = || {
        let text = "no report of a notification: message discarded";
        output.record(
            text,
            &json!({ "stored": 0, "duplicate": 0, "discarded": true }),
        )
    };
    let Some(report) = dsn::read(&mail, now) else {
        return discard();
    };
    let ids = report.notification_ids(tokens);
    if ids.is_empty() {
        return discard();
    }
    let store = open(&config).await?;
    let snapshots = store.read(&ids).await?;
    let reports = report.verified_reports(tokens, |id| {
        let known = snapshots.iter().filter(|snapshot| snapshot.id == id);
        known.flat_map(|snapshot| snapshot.addresses()).collect()
    });
    if reports.is_empty() {
        return discard();
    }
    let new = store.save_receipts(dsn::PROVIDER, &reports).await?;
    let TemplateConfig {
        folder,
        default_locale,
    } = &config.templates;
    let objects = reports.iter().any(|report| report.objector.is_some());
    let templates = objects
        .then(|| Templates::load(folder, default_locale.clone()).map_err(Exit::usage))
        .transpose()?;
    let suppression = Suppression::new(store.clone());
    let applied = suppression.apply_reports(&reports, templates.as_ref());
    applied.await?;
    let duplicate = reports.len() as u64 - new;
    output.record(
        &format!("{new} stored, {duplicate} duplicate"),
        &json!({ "stored": new, "duplicate": duplicate, "discarded": false }),
    )
}
