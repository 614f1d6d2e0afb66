//! Instruction sets of the CPU, as proof tokens.
//!
//! A kernel's entry takes the token of its instruction set. Only this file makes tokens, and only after it has asked
//! the CPU, so a call of a kernel proves that its instructions exist. The environment variable `INLOCK_CPU` limits the
//! kernels that are chosen, in release builds too.

use crate::CipherError;

/// The environment variable that limits the instruction sets in use.
pub const CPU_LIMIT_VARIABLE: &str = "INLOCK_CPU";

/// AES-NI on 128-bit vectors: AES, PCLMULQDQ, and AVX for the three-operand forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AesNi(());

/// VAES on 256-bit vectors: AVX2, VAES, VPCLMULQDQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vaes256(());

/// VAES on 512-bit vectors: AVX-512 F, BW and VL, VAES, VPCLMULQDQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vaes512(());

/// SHA instructions for SHA-256, with SSSE3 and SSE4.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sha(());

/// AVX-512 F and BW: integers of 8 to 64 bits in vectors of 512 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx512(());

#[cfg(target_arch = "x86_64")]
impl Sha {
    /// Returns the token if this CPU has the instructions.
    pub fn detect() -> Option<Self> {
        (is_x86_feature_detected!("sha") && is_x86_feature_detected!("ssse3") && is_x86_feature_detected!("sse4.1"))
            .then_some(Self(()))
    }
}

#[cfg(target_arch = "x86_64")]
impl Avx512 {
    /// Returns the token if this CPU and its operating system have the instructions.
    pub fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw")).then_some(Self(()))
    }
}

#[cfg(target_arch = "x86_64")]
impl AesNi {
    /// Returns the token if this CPU has the instructions.
    pub fn detect() -> Option<Self> {
        (is_x86_feature_detected!("aes") && is_x86_feature_detected!("pclmulqdq") && is_x86_feature_detected!("avx"))
            .then_some(Self(()))
    }
}

#[cfg(target_arch = "x86_64")]
impl Vaes256 {
    /// Returns the token if this CPU and its operating system have the instructions.
    pub fn detect() -> Option<Self> {
        AesNi::detect()?;
        (is_x86_feature_detected!("avx2") && is_x86_feature_detected!("vaes") && is_x86_feature_detected!("vpclmulqdq"))
            .then_some(Self(()))
    }
}

#[cfg(target_arch = "x86_64")]
impl Vaes512 {
    /// Returns the token if this CPU and its operating system have the instructions.
    pub fn detect() -> Option<Self> {
        Vaes256::detect()?;
        (is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl"))
        .then_some(Self(()))
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod absent {
    macro_rules! never_detected {
        ($($token:ident),*) => { $(impl super::$token {
            /// Returns `None`: these are instructions of another architecture.
            pub fn detect() -> Option<Self> {
                None
            }
        })* };
    }
    never_detected!(AesNi, Vaes256, Vaes512, Sha, Avx512);
}

/// Upper limit of the instruction sets in use. A later one allows all that an earlier one does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum CpuLimit {
    /// The portable kernel. Its `aes` crate detects and uses AES instructions itself.
    Portable,
    /// Up to [`AesNi`].
    AesNi,
    /// Up to [`Vaes256`].
    Vaes256,
    /// Up to [`Vaes512`].
    #[default]
    Vaes512,
}

impl CpuLimit {
    /// Reads `INLOCK_CPU`; no limit if it is unset or empty.
    ///
    /// # Errors
    ///
    /// Fails if the variable has an unknown value.
    pub fn from_env() -> Result<Self, CipherError> {
        match std::env::var_os(CPU_LIMIT_VARIABLE) {
            None => Ok(Self::default()),
            Some(value) => Self::parse(&value.to_string_lossy()),
        }
    }

    /// Reads one of `portable`, `aesni`, `vaes256`, `vaes512`, or nothing at all.
    fn parse(value: &str) -> Result<Self, CipherError> {
        Ok(match value {
            "portable" => Self::Portable,
            "aesni" => Self::AesNi,
            "vaes256" => Self::Vaes256,
            "vaes512" | "" => Self::Vaes512,
            other => return Err(CipherError::UnknownCpuLimit { value: other.chars().take(64).collect() }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_by_name_are_ordered() {
        let names = ["portable", "aesni", "vaes256", "vaes512"];
        let limits = names.map(|name| CpuLimit::parse(name).unwrap());
        assert!(limits.is_sorted() && limits.windows(2).all(|pair| pair[0] != pair[1]));
        assert_eq!(CpuLimit::parse(""), Ok(CpuLimit::Vaes512));
    }

    #[test]
    fn limit_of_an_unknown_name_is_an_error() {
        let error = CpuLimit::parse("AESNI").unwrap_err().to_string();
        assert_eq!(error, "INLOCK_CPU is 'AESNI', not one of portable, aesni, vaes256, vaes512");
    }
}
