//! Validation and application of user attributes in requests.

use postern_core::email::EmailAddress;

use crate::pool::error::{ApiError, ApiResult};
use crate::pool::model::{AppClient, User, UserAttribute, UserPool};

/// Validates attributes written through a user's own client.
pub(super) fn check_client(
    pool: &UserPool,
    client: &AppClient,
    attributes: &[UserAttribute],
) -> ApiResult {
    check(pool, attributes)?;
    let mut names = attributes.iter().map(|attribute| &attribute.name);
    if names.all(|name| client.may_write(name)) {
        return Ok(());
    }
    Err(ApiError::not_authorized(
        "A client attempted to write unauthorized attribute",
    ))
}

/// Validates attributes written by an administrator.
pub(super) fn check(pool: &UserPool, attributes: &[UserAttribute]) -> ApiResult {
    for UserAttribute { name, value } in attributes {
        let mistake = if !pool.knows_attribute(name) {
            Some("Attribute does not exist in the schema.")
        } else if name == "email" && EmailAddress::parse(value).is_none() {
            Some("Invalid email address format.")
        } else {
            None
        };
        if let Some(mistake) = mistake {
            return Err(ApiError::invalid(format!(
                "Attributes did not conform to the schema: {name}: {mistake}"
            )));
        }
    }
    Ok(())
}

/// Applies validated attributes to the user. A changed address becomes unverified, unless the same
/// request sets its verification.
pub(super) fn apply(user: &mut User, attributes: &[UserAttribute]) {
    let said = |name: &str| attributes.iter().any(|attribute| attribute.name == name);
    for UserAttribute { name, value } in attributes {
        let changed = user.attributes.get(name) != Some(value);
        user.attributes.insert(name.clone(), value.clone());
        let verified = match name.as_str() {
            "email" => "email_verified",
            "phone_number" => "phone_number_verified",
            _ => continue,
        };
        if changed && !said(verified) {
            user.attributes
                .insert(verified.to_owned(), "false".to_owned());
        }
    }
}
