//! The values of options, each with one error sentence.

use std::ffi::OsString;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use lexopt::prelude::ValueExt;
use thiserror::Error;

use crate::reach::{PrefixError, ReachError};
use crate::text::one_line;
use crate::url::UrlError;

/// Wrong use of the command line: one sentence each.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum UsageError {
    /// An option that has to be given.
    #[error("--{0} is required; try --help")]
    Missing(&'static str),
    /// An option that this client does not have.
    #[error("{0} is not an option; try --help")]
    Unknown(String),
    /// An argument that belongs to no option.
    #[error("unexpected argument {0}; try --help")]
    Unexpected(String),
    /// An option without its value, or with one that it does not take.
    #[error("{0}")]
    Value(String),
    /// A value that is not text.
    #[error("--{0} is not text")]
    NotText(String),
    /// A value of another kind.
    #[error("--{option} {value} is not {wanted}")]
    NotA {
        /// The option, without dashes.
        option: String,
        /// What was given.
        value: String,
        /// What it should be.
        wanted: String,
    },
    /// A value outside of what is possible.
    #[error("--{option} must be {wanted}")]
    OutOfRange {
        /// The option, without dashes.
        option: String,
        /// What it should be.
        wanted: String,
    },
    /// `--url` cannot be fetched.
    #[error("--url {0}")]
    Url(#[from] UrlError),
    /// `--allow` holds no prefix.
    #[error("--allow: {0}")]
    Allow(#[from] PrefixError),
    /// The environment's prefixes are not valid.
    #[error(transparent)]
    Reach(#[from] ReachError),
    /// Neither option nor system names CA certificates.
    #[error("this system has no known file of CA certificates; name one with --ca")]
    NoCaFile,
}

/// The value of the option that is being read.
pub struct Values<'a> {
    option: String,
    parser: &'a mut lexopt::Parser,
}

impl<'a> Values<'a> {
    pub(crate) const fn new(option: String, parser: &'a mut lexopt::Parser) -> Self {
        Self { option, parser }
    }

    fn raw(&mut self) -> Result<OsString, UsageError> {
        self.parser.value().map_err(|error| usage_error(&error))
    }

    /// The value as text.
    ///
    /// # Errors
    /// It is missing, or not UTF-8.
    pub fn text(&mut self) -> Result<String, UsageError> {
        let value = self.raw()?;
        value
            .string()
            .map_err(|_| UsageError::NotText(self.option.clone()))
    }

    /// The value as a path.
    ///
    /// # Errors
    /// It is missing.
    pub fn path(&mut self) -> Result<PathBuf, UsageError> {
        self.raw().map(PathBuf::from)
    }

    /// The value as `T`, which a sentence calls `wanted`, e.g. "a port number".
    ///
    /// # Errors
    /// It is missing or something else.
    pub fn parsed<T: FromStr>(&mut self, wanted: &str) -> Result<T, UsageError> {
        let value = self.text()?;
        value.parse().map_err(|_| UsageError::NotA {
            option: self.option.clone(),
            value: one_line(&value),
            wanted: wanted.to_owned(),
        })
    }

    /// The value as a whole number of `unit` within `range`.
    ///
    /// # Errors
    /// It is missing, not a number, or out of range.
    pub fn number<T>(&mut self, range: RangeInclusive<T>, unit: &str) -> Result<T, UsageError>
    where
        T: FromStr + PartialOrd + Display,
    {
        let number = self.parsed(&format!("a number of {unit}"))?;
        if range.contains(&number) {
            return Ok(number);
        }
        let (least, most) = (range.start(), range.end());
        Err(self.out_of_range(&format!("from {least} to {most} {unit}")))
    }

    /// The value as a duration in seconds, at most a day.
    ///
    /// # Errors
    /// It is missing, not a number, or out of range.
    pub fn seconds(&mut self) -> Result<Duration, UsageError> {
        const DAY_S: f64 = 86400.0;
        let number: f64 = self.parsed("a number of seconds")?;
        if number > 0.0 && number <= DAY_S {
            Ok(Duration::from_secs_f64(number))
        } else {
            Err(self.out_of_range("above 0 and at most 86400 seconds"))
        }
    }

    /// The value as one of `words`.
    ///
    /// # Errors
    /// It is missing or another word.
    pub fn one_of(&mut self, words: &[&'static str]) -> Result<&'static str, UsageError> {
        let value = self.text()?;
        let found = words.iter().find(|word| **word == value);
        found
            .copied()
            .ok_or_else(|| self.out_of_range(&format!("one of {}", words.join(", "))))
    }

    pub(crate) fn header_value(&mut self) -> Result<String, UsageError> {
        let value = self.text()?;
        let printable = value
            .bytes()
            .all(|byte| byte == b' ' || byte.is_ascii_graphic());
        if printable && !value.is_empty() {
            Ok(value)
        } else {
            Err(self.out_of_range("printable ASCII"))
        }
    }

    pub(crate) fn out_of_range(&self, wanted: &str) -> UsageError {
        UsageError::OutOfRange {
            option: self.option.clone(),
            wanted: wanted.to_owned(),
        }
    }
}

pub(crate) fn usage_error(error: &lexopt::Error) -> UsageError {
    UsageError::Value(one_line(&error.to_string()))
}
