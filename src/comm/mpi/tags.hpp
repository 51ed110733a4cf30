// Message tags: one a verb, so that messages of different verbs never match.
#pragma once

namespace cartan::comm {

inline constexpr int kTagHost = 1;
inline constexpr int kTagPoint = 2;
inline constexpr int kTagAllToAll = 3;
inline constexpr int kTagReduce = 4;
inline constexpr int kTagGather = 5;
inline constexpr int kTagNothing = 6;  // never sent
inline constexpr int kTagFailure = 7;

}  // namespace cartan::comm
