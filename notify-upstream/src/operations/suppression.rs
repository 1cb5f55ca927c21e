//! Suppressed and unsubscribed addresses. They are stored as plain SHA-256 digests only.

use postern_core::clock::Timestamp;
use serde::Serialize;

use crate::address::AddressHash;
use crate::delivery::suppression::SuppressionList;
use crate::notification::Channel;
use crate::store::{SuppressionEntry, SuppressionQuery};

/// An entry of a suppression list.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SuppressionView {
    /// The time of the addition.
    pub(crate) at: Timestamp,
    pub(crate) list: Option<&'static str>,
    pub(crate) channel: Option<&'static str>,
    /// The category that the address has left.
    pub(crate) category: Option<String>,
    pub(crate) reason: String,
    /// SHA-256 of the address in hexadecimal digits.
    pub(crate) address_hash: String,
}

/// Returns the kinds of entries of a list and channel, or of all.
pub(crate) fn kinds(list: Option<SuppressionList>, channel: Option<Channel>) -> Vec<i16> {
    SuppressionList::NAMES
        .iter()
        .flat_map(|(_, list)| Channel::ALL.map(|channel| (*list, channel)))
        .filter(|(known, of)| {
            list.is_none_or(|list| list == *known) && channel.is_none_or(|channel| channel == *of)
        })
        .map(|(list, channel)| list.kind(channel))
        .collect()
}

/// Parses the SHA-256 of an address: 64 hexadecimal digits.
pub(crate) fn parse_hash(text: &str) -> Option<AddressHash> {
    hex::decode(text).ok()?.try_into().ok()
}

/// Returns the id of an entry: list and channel, hash of the address, category.
pub(crate) fn entry_id(entry: &SuppressionEntry) -> String {
    format!(
        "{}.{}.{}",
        entry.kind,
        hex::encode(&entry.address),
        entry.category
    )
}

/// Returns the parts of the id of an entry.
pub(crate) fn parse_entry_id(id: &str) -> Option<(i16, AddressHash, String)> {
    let (kind, id) = id.split_once('.')?;
    let (hash, category) = id.split_once('.')?;
    let kind = kind.parse().ok()?;
    SuppressionList::of_kind(kind)?;
    Some((kind, parse_hash(hash)?, category.to_owned()))
}

/// Returns the selection of the entry with this id.
pub(crate) fn entry_of(id: &str) -> Option<SuppressionQuery> {
    let (kind, hash, category) = parse_entry_id(id)?;
    Some(SuppressionQuery::of_entry(kind, hash, category))
}

// === impl SuppressionView ===

impl From<&SuppressionEntry> for SuppressionView {
    fn from(entry: &SuppressionEntry) -> Self {
        let kind = SuppressionList::of_kind(entry.kind);
        Self {
            at: entry.at,
            list: kind.map(|(list, _)| list.as_str()),
            channel: kind.map(|(_, channel)| channel.as_str()),
            category: Some(entry.category.clone()).filter(|category| !category.is_empty()),
            reason: entry.reason.clone(),
            address_hash: hex::encode(&entry.address),
        }
    }
}
