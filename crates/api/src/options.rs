//! The options of a transfer and of a job that a client may set. The program provides them from its own definition of
//! `zmove submit`, so the API accepts the same options, except for those that clients must not set.

use std::collections::BTreeMap;

use serde_json::Value;
use utoipa::openapi::schema::{ArrayBuilder, Object, ObjectBuilder, Schema, SchemaFormat, Type};
use utoipa::openapi::{OpenApi, RefOr};

use crate::problem::Problem;

/// An option of `zmove submit` that a client may set.
#[derive(Clone, Debug)]
pub struct SubmitOption {
    /// The name on the command line, without the leading dashes.
    pub word: String,
    /// The help text.
    pub help: String,
    /// The type of its value.
    pub takes: ValueType,
    /// Whether the option may be repeated.
    pub repeats: bool,
    /// Whether the option applies to the job and not to the transfer. Such options are ignored in a plan.
    pub is_job_option: bool,
}

/// The type of an option's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValueType {
    /// No value: the option is a flag.
    Nothing,
    /// An integer.
    Number,
    /// One of these words. Any text if the list is empty.
    Text(Vec<String>),
    /// An absolute path on this host.
    File,
}

impl SubmitOption {
    /// Returns the name of the option as a JSON field.
    #[must_use]
    pub fn name(&self) -> String {
        self.word.replace('-', "_")
    }

    /// Returns the command-line arguments that set the option to a value.
    fn words(&self, value: &Value) -> Result<Vec<String>, Problem> {
        let values = match value {
            Value::Null | Value::Bool(false) => &[],
            Value::Array(values) if self.repeats => &values[..],
            value => std::slice::from_ref(value),
        };
        values.iter().map(|value| self.word(value)).collect()
    }

    fn word(&self, value: &Value) -> Result<String, Problem> {
        let wanted = match (&self.takes, value) {
            (ValueType::Nothing, Value::Bool(true)) => return Ok(format!("--{}", self.word)),
            (ValueType::Nothing, _) => "true or false",
            (ValueType::File, Value::String(path)) if !path.starts_with('/') => {
                "an absolute path on this host"
            }
            (ValueType::Number | ValueType::Text(_) | ValueType::File, Value::String(text)) => {
                return Ok(format!("--{}={text}", self.word));
            }
            (ValueType::Number | ValueType::Text(_), Value::Number(number)) => {
                return Ok(format!("--{}={number}", self.word));
            }
            (ValueType::Number, _) => "a number",
            (ValueType::Text(_) | ValueType::File, _) => "a string",
        };
        Err(Problem::bad(format!(
            "`{}`: expected {wanted}",
            self.name()
        )))
    }

    fn schema(&self) -> Schema {
        let one = match &self.takes {
            ValueType::Nothing => ObjectBuilder::new().schema_type(Type::Boolean),
            ValueType::Number => ObjectBuilder::new().schema_type(Type::Integer),
            ValueType::Text(words) => {
                let words = (!words.is_empty()).then(|| words.clone());
                ObjectBuilder::new()
                    .schema_type(Type::String)
                    .enum_values(words)
            }
            ValueType::File => {
                let file = SchemaFormat::Custom("file".to_owned());
                ObjectBuilder::new()
                    .schema_type(Type::String)
                    .format(Some(file))
            }
        };
        let help = Some(self.help.clone());
        if self.repeats {
            return ArrayBuilder::new()
                .items(one)
                .description(help)
                .build()
                .into();
        }
        one.description(help).build().into()
    }
}

/// Returns the command-line arguments for these fields. Options for which `are_meant` returns false are checked but
/// left out.
pub(crate) fn words(
    known: &[SubmitOption],
    fields: &BTreeMap<String, Value>,
    are_meant: impl Fn(&SubmitOption) -> bool,
) -> Result<Vec<String>, Problem> {
    let mut words = Vec::new();
    for (name, value) in fields {
        let option = known.iter().find(|option| option.name() == *name);
        let option = option.ok_or_else(|| Problem::bad(format!("unknown field `{name}`")))?;
        let more = option.words(value)?;
        words.extend(more.into_iter().filter(|_| are_meant(option)));
    }
    Ok(words)
}

/// Adds the options to the schema of an object.
pub(crate) fn describe(api: &mut OpenApi, object: &str, options: &[SubmitOption]) {
    let described = api
        .components
        .as_mut()
        .and_then(|components| components.schemas.get_mut(object));
    let Some(RefOr::T(Schema::Object(Object { properties, .. }))) = described else {
        unreachable!("{object} is described as an object")
    };
    properties.extend(
        options
            .iter()
            .map(|option| (option.name(), RefOr::T(option.schema()))),
    );
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn option(word: &str, takes: ValueType, repeats: bool) -> SubmitOption {
        SubmitOption {
            word: word.to_owned(),
            help: String::new(),
            takes,
            repeats,
            is_job_option: word == "after",
        }
    }

    fn said(fields: Value, job: bool) -> Result<String, String> {
        let known = [
            option("after", ValueType::Number, true),
            option("exclude", ValueType::Text(Vec::new()), true),
            option("files-from", ValueType::File, false),
            option("delete", ValueType::Nothing, false),
            option("limit", ValueType::Text(Vec::new()), false),
        ];
        let fields = serde_json::from_value(fields).unwrap();
        let words = words(&known, &fields, |option| job || !option.is_job_option);
        words
            .map(|words| words.join(" "))
            .map_err(|problem| problem.error)
    }

    #[test]
    fn fields_are_words() {
        let fields = json!({
            "after": [1, "2"], "delete": true, "exclude": ["-x", "--y"], "files_from": "/l", "limit": "--json",
        });
        let transfer = "--delete --exclude=-x --exclude=--y --files-from=/l --limit=--json";
        assert_eq!(
            said(fields.clone(), true),
            Ok(format!("--after=1 --after=2 {transfer}"))
        );
        assert_eq!(said(fields, false), Ok(transfer.to_owned()));
        assert_eq!(
            said(json!({ "after": [], "delete": false, "limit": null }), true),
            Ok(String::new())
        );
    }

    #[test]
    fn what_is_none_is_refused() {
        for (fields, error) in [
            (json!({ "rsh": "sh" }), "unknown field `rsh`"),
            (json!({ "files-from": "/l" }), "unknown field `files-from`"),
            (
                json!({ "files_from": "l" }),
                "`files_from`: expected an absolute path on this host",
            ),
            (
                json!({ "files_from": "-" }),
                "`files_from`: expected an absolute path on this host",
            ),
            (json!({ "delete": 1 }), "`delete`: expected true or false"),
            (json!({ "limit": ["1M"] }), "`limit`: expected a string"),
            (json!({ "after": [true] }), "`after`: expected a number"),
        ] {
            assert_eq!(said(fields, false), Err(error.to_owned()));
        }
    }
}
