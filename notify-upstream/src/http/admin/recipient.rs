//! The recipient of a message that an operator sends.

use postern_core::decode::{Field, Value};
use postern_core::email::EmailAddress;

use crate::address::{Address, DeviceToken, PhoneNumber, Recipient};
use crate::notification::Channel;

/// Reads `to`: the address of the channel as text, or a `recipient` as in `POST /notifications`.
pub(super) fn read_recipient(field: &Field<'_>, channel: Channel) -> Option<Recipient> {
    let Value::String(text) = field.value() else {
        return Recipient::read(field, Some(channel));
    };
    let address = match channel {
        Channel::Email => EmailAddress::parse(text).map(Address::Email),
        Channel::Sms => PhoneNumber::parse(text).map(Address::Phone),
        Channel::Push => DeviceToken::parse(text).map(Address::DeviceToken),
    };
    let detail = format!("must be an address for the channel {}", channel.as_str());
    address
        .map(Recipient::from)
        .or_else(|| field.fail("invalid_format", detail))
}
