//! The few parts of an `https` URL that one request needs. The path is sent as given, the host as all clients send it.

use std::net::IpAddr;

use thiserror::Error;

/// Why a URL cannot be fetched: a clause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum UrlError {
    /// Some character is not printable ASCII.
    #[error("write it in ASCII, with other characters percent-encoded and the host in punycode")]
    NotAscii,
    /// Another scheme, or none.
    #[error("must start with https://")]
    NotHttps,
    /// A name before the host.
    #[error("must not contain a user name")]
    UserName,
    /// The host or the port is not valid.
    #[error("has no valid host[:port]")]
    Host,
}

/// The port of https, which is left out of `:authority`.
const HTTPS: u16 = 443;

/// An absolute `https` URL, split. All parts are printable ASCII.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Url {
    /// As given on the command line.
    pub text: String,
    /// Host without brackets and port: the name in the certificate, and in SNI unless it is an address.
    pub host: String,
    /// `host[:port]`, in small letters and without https's own port: the value of `:authority`.
    pub authority: String,
    /// Port as given, if any.
    pub port: Option<u16>,
    /// Path and query: the value of `:path`; at least `/`.
    pub path: String,
}

impl Url {
    /// Splits `text`.
    ///
    /// # Errors
    /// It is not a URL that can be fetched.
    pub fn parse(text: &str) -> Result<Self, UrlError> {
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(UrlError::NotAscii);
        }
        let Some(rest) = strip_scheme(text) else {
            return Err(UrlError::NotHttps);
        };
        let rest = rest.split('#').next().unwrap_or_default();
        let (authority, path) = match rest.find(['/', '?']) {
            Some(at) => rest.split_at(at),
            None => (rest, ""),
        };
        if authority.contains('@') {
            return Err(UrlError::UserName);
        }
        let Some((host, port)) = split_authority(authority) else {
            return Err(UrlError::Host);
        };
        // Normal, as Python's clients and libcurl send it (RFC 3986, section 6.2.3): a cache may take other ones for
        // another object.
        let host = host.to_ascii_lowercase();
        let mut authority = if host.contains(':') {
            format!("[{host}]")
        } else {
            host.clone()
        };
        if let Some(port) = port.filter(|port| *port != HTTPS) {
            authority = format!("{authority}:{port}");
        }
        let path = if path.starts_with('/') {
            path.to_owned()
        } else {
            format!("/{path}")
        };
        Ok(Self {
            text: text.to_owned(),
            host,
            authority,
            port,
            path,
        })
    }

    /// The host as an address, when the URL names an address instead of a domain.
    #[must_use]
    pub fn host_address(&self) -> Option<IpAddr> {
        self.host.parse().ok()
    }
}

fn strip_scheme(text: &str) -> Option<&str> {
    const SCHEME: &str = "https://";
    let head = text.get(..SCHEME.len())?;
    head.eq_ignore_ascii_case(SCHEME)
        .then(|| &text[SCHEME.len()..])
}

fn split_authority(authority: &str) -> Option<(&str, Option<u16>)> {
    let (host, port) = if let Some(rest) = authority.strip_prefix('[') {
        let (host, after) = rest.split_once(']')?;
        host.parse::<std::net::Ipv6Addr>().ok()?;
        (host, after)
    } else {
        let at = authority.find(':').unwrap_or(authority.len());
        let (host, after) = authority.split_at(at);
        if host.is_empty()
            || !host
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b))
        {
            return None;
        }
        (host, after)
    };
    if port.is_empty() {
        return Some((host, None));
    }
    let port: u16 = port.strip_prefix(':')?.parse().ok()?;
    (port != 0).then_some((host, Some(port)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_is_kept_as_given() {
        let url = Url::parse("https://www.Example.org:8443/a/b%20c?d=e#part").unwrap();
        assert_eq!(url.host, "www.example.org");
        assert_eq!(url.authority, "www.example.org:8443");
        assert_eq!(url.port, Some(8443));
        assert_eq!(url.path, "/a/b%20c?d=e");
        assert_eq!(url.host_address(), None);
    }

    #[test]
    fn missing_path_becomes_a_slash() {
        assert_eq!(Url::parse("HTTPS://a.test").unwrap().path, "/");
        assert_eq!(Url::parse("https://a.test?x=1").unwrap().path, "/?x=1");
    }

    #[test]
    fn one_server_has_one_authority() {
        for (text, authority) in [
            ("https://A.test:443/x", "a.test"),
            ("https://a.test:0443/", "a.test"),
            ("https://a.test:80/", "a.test:80"),
            ("https://[2001:DB8::1]:443/", "[2001:db8::1]"),
        ] {
            assert_eq!(Url::parse(text).unwrap().authority, authority, "{text}");
        }
    }

    #[test]
    fn addresses_as_hosts() {
        let url = Url::parse("https://[2001:db8::1]:4433/f").unwrap();
        assert_eq!(url.host_address(), Some("2001:db8::1".parse().unwrap()));
        assert_eq!(
            (url.port, url.authority.as_str()),
            (Some(4433), "[2001:db8::1]:4433")
        );
        assert!(
            Url::parse("https://198.18.0.1/")
                .unwrap()
                .host_address()
                .is_some()
        );
    }

    #[test]
    fn what_cannot_be_fetched_is_refused() {
        for bad in [
            "",
            "http://a.test/",
            "ftp://a",
            "https://",
            "https:///x",
            "https://a b/",
            "https://a:0/",
            "https://a:99999/",
            "https://u:p@a/",
            "https://[::1/",
            "https://[zz]/",
            "https://a/\r\nx: y",
            "https://ü.test/",
            "https://a:/x:",
        ] {
            assert!(Url::parse(bad).is_err(), "{bad:?}");
        }
    }
}
