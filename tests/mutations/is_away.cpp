// Which place is taken away in this run (workshop.py). In a file of its own: what it reads is no access of a
// kernel.
#include <cstdlib>

extern "C" bool mutation_is_away(int number) {
  static const char* const away = std::getenv("MUTATION_AWAY");
  static const int chosen = away == nullptr ? 0 : std::atoi(away);
  return number == chosen;
}
