//! Attributes as a request brings them: known to the pool, writable by the client, well-formed.

use crate::fault::Fault;
use crate::pool::{Client, Pool};
use crate::user::{Attribute, User, is_email};

/// Longest attribute value, in characters (Cognito's quota).
const LONGEST: usize = 2048;

/// Checks what a user's own client wants to write.
pub(super) fn check_client(
    pool: &Pool,
    client: &Client,
    attributes: &[Attribute],
) -> Result<(), Fault> {
    check(pool, attributes)?;
    if attributes
        .iter()
        .all(|attribute| client.may_write(&attribute.name))
    {
        return Ok(());
    }
    Err(Fault::not_authorized(
        "A client attempted to write unauthorized attribute",
    ))
}

/// Checks what an administrator wants to write.
pub(super) fn check(pool: &Pool, attributes: &[Attribute]) -> Result<(), Fault> {
    for Attribute { name, value } in attributes {
        let mistake = if !pool.knows_attribute(name) {
            Some("Attribute does not exist in the schema.")
        } else if value.chars().count() > LONGEST {
            Some("String must be no longer than 2048 characters")
        } else if name == "email" && !is_email(value) {
            Some("Invalid email address format.")
        } else if name == "phone_number" && !is_phone(value) {
            Some("Invalid phone number format.")
        } else if name.ends_with("_verified") && !matches!(value.as_str(), "true" | "false") {
            Some("must be true or false")
        } else {
            None
        };
        if let Some(mistake) = mistake {
            return Err(Fault::invalid(format!(
                "Attributes did not conform to the schema: {name}: {mistake}"
            )));
        }
    }
    Ok(())
}

/// E.164: `+` and up to fifteen digits. An empty value takes the number away.
fn is_phone(text: &str) -> bool {
    let digits = text.strip_prefix('+').unwrap_or_default();
    text.is_empty()
        || ((1..=15).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Writes checked attributes into the user, and the alias with them. An address that changes is not
/// verified any more, unless the same request says so.
pub(super) fn apply(pool: &Pool, user: &mut User, attributes: &[Attribute]) {
    let said = |name: &str| attributes.iter().any(|attribute| attribute.name == name);
    for Attribute { name, value } in attributes {
        let changed = user.attributes.get(name) != Some(value);
        user.attributes.0.insert(name.clone(), value.clone());
        let verified = match name.as_str() {
            "email" => "email_verified",
            "phone_number" => "phone_number_verified",
            _ => continue,
        };
        if changed && !said(verified) {
            user.attributes
                .0
                .insert(verified.to_owned(), "false".to_owned());
        }
    }
    set_alias(pool, user);
}

/// Takes attributes away; `sub` and the address that users sign in with stay.
pub(super) fn remove(pool: &Pool, user: &mut User, names: &[String]) -> Result<(), Fault> {
    if pool.settings.email_usernames && names.iter().any(|name| name == "email") {
        return Err(Fault::invalid(
            "Cannot delete the email attribute: users sign in with it",
        ));
    }
    for name in names {
        user.attributes.0.remove(name);
    }
    set_alias(pool, user);
    Ok(())
}

fn set_alias(pool: &Pool, user: &mut User) {
    user.alias = match user.email() {
        Some(email) if pool.settings.email_usernames => Some(email.to_lowercase()),
        Some(_) | None => None,
    };
}
