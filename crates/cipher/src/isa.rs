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

/// Integers on 256-bit vectors, for ciphers other than AES.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))] // Never made there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx2(());

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
impl Avx2 {
    /// Returns the token if this CPU and its operating system have the instructions.
    pub fn detect() -> Option<Self> {
        is_x86_feature_detected!("avx2").then_some(Self(()))
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
    never_detected!(AesNi, Avx2, Vaes256, Vaes512, Sha, Avx512);
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

/// An implementation of AES and its modes, with the proof that this CPU can run it. Other ciphers have kernels of the
/// same levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AesKernel {
    /// Any CPU; constant time.
    Portable,
    /// One block per instruction.
    AesNi(AesNi),
    /// Two blocks per instruction.
    Vaes256(Vaes256),
    /// Four blocks per instruction.
    Vaes512(Vaes512),
}

impl AesKernel {
    /// Returns the fastest kernel that this CPU has and `INLOCK_CPU` allows.
    ///
    /// # Errors
    ///
    /// Fails if `INLOCK_CPU` has an unknown value.
    pub fn best() -> Result<Self, CipherError> {
        Ok(Self::allowed()?.last().copied().unwrap_or(Self::Portable))
    }

    /// Returns the kernels that this CPU has and `INLOCK_CPU` allows, slowest first.
    ///
    /// # Errors
    ///
    /// Fails if `INLOCK_CPU` has an unknown value.
    pub fn allowed() -> Result<Vec<Self>, CipherError> {
        Ok(Self::available_within(CpuLimit::from_env()?))
    }

    /// Returns all kernels that this CPU has, slowest first. Ignores `INLOCK_CPU`.
    pub fn available() -> Vec<Self> {
        Self::available_within(CpuLimit::default())
    }

    fn available_within(limit: CpuLimit) -> Vec<Self> {
        let known = [
            (CpuLimit::Portable, Some(Self::Portable)),
            (CpuLimit::AesNi, AesNi::detect().map(Self::AesNi)),
            (CpuLimit::Vaes256, Vaes256::detect().map(Self::Vaes256)),
            (CpuLimit::Vaes512, Vaes512::detect().map(Self::Vaes512)),
        ];
        known.into_iter().filter(|(needs, _)| *needs <= limit).filter_map(|(_, kernel)| kernel).collect()
    }

    /// Returns the name of the kernel in `INLOCK_CPU` and in benchmarks.
    pub fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::AesNi(_) => "aesni",
            Self::Vaes256(_) => "vaes256",
            Self::Vaes512(_) => "vaes512",
        }
    }
}

/// The vectors of a kernel of another cipher than AES, with the proof that this CPU has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WideKernel {
    /// 256 bits.
    Avx2(Avx2),
    /// 512 bits.
    Avx512(Vaes512),
}

impl WideKernel {
    /// Returns the kernel for the level of an AES kernel; `None`: the portable one. AVX2 is used from the level
    /// `aesni` on, since CPUs with AVX2 need not have VAES.
    pub(crate) fn at_level(level: AesKernel) -> Option<Self> {
        match level {
            AesKernel::Portable => None,
            AesKernel::AesNi(_) | AesKernel::Vaes256(_) => Avx2::detect().map(Self::Avx2),
            AesKernel::Vaes512(proof) => Some(Self::Avx512(proof)),
        }
    }

    /// Returns the name of the kernel for a level.
    pub(crate) fn name_at_level(level: AesKernel) -> &'static str {
        match Self::at_level(level) {
            None => AesKernel::Portable.name(),
            Some(Self::Avx2(_)) => "avx2",
            Some(Self::Avx512(_)) => "avx512",
        }
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

    /// A limit admits no wider kernel; without one the widest is the best.
    #[test]
    fn kernels_within_a_limit_are_those_up_to_it() {
        let all = AesKernel::available();
        let names = ["portable", "aesni", "vaes256", "vaes512"];
        let limits = [CpuLimit::Portable, CpuLimit::AesNi, CpuLimit::Vaes256, CpuLimit::Vaes512];
        for (most, limit) in limits.into_iter().enumerate() {
            let within = AesKernel::available_within(limit);
            let expected: Vec<_> =
                all.iter().copied().filter(|kernel| names[..=most].contains(&kernel.name())).collect();
            assert_eq!(within, expected);
            assert_eq!(within[0], AesKernel::Portable);
        }
    }
}
