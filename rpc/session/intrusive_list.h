#pragma once
// A doubly linked list of objects that inherit ListNode<T>. Never allocates; an object leaves its
// list when it dies.
namespace verbena::session {

template <class T>
class ListNode {
 public:
  ListNode() = default;
  ListNode(const ListNode&) = delete;
  ListNode& operator=(const ListNode&) = delete;
  ~ListNode() { Unlink(); }

  bool linked() const { return next_ != nullptr; }
  void Unlink() {
    if (next_ == nullptr) return;
    next_->previous_ = previous_;
    previous_->next_ = next_;
    next_ = previous_ = nullptr;
  }

 private:
  template <class>
  friend class List;
  ListNode* next_ = nullptr;
  ListNode* previous_ = nullptr;
};

template <class T>
class List {
 public:
  List() { end_.next_ = end_.previous_ = &end_; }
  ~List() {
    while (!empty()) end_.next_->Unlink();
    end_.next_ = end_.previous_ = nullptr;
  }
  List(const List&) = delete;
  List& operator=(const List&) = delete;

  bool empty() const { return end_.next_ == &end_; }
  // Moves `item` here from whatever list it is in.
  void PushBack(T& item) {
    ListNode<T>& node = item;
    node.Unlink();
    node.previous_ = end_.previous_;
    node.next_ = &end_;
    end_.previous_->next_ = &node;
    end_.previous_ = &node;
  }
  T* front() { return empty() ? nullptr : static_cast<T*>(end_.next_); }
  // The first for which f(T&) is true, or null.
  template <class F>
  T* Find(F&& f) {
    for (ListNode<T>* node = end_.next_; node != &end_; node = node->next_) {
      if (f(static_cast<T&>(*node))) return static_cast<T*>(node);
    }
    return nullptr;
  }
  // f(T&) for each; f may unlink or delete the one it was given, and nothing else of this list.
  template <class F>
  void ForEach(F&& f) {
    for (ListNode<T>* node = end_.next_; node != &end_;) {
      ListNode<T>* const next = node->next_;
      f(static_cast<T&>(*node));
      node = next;
    }
  }
  // As ForEach, until f returns false.
  template <class F>
  void ForEachWhile(F&& f) {
    for (ListNode<T>* node = end_.next_; node != &end_;) {
      ListNode<T>* const next = node->next_;
      if (!f(static_cast<T&>(*node))) return;
      node = next;
    }
  }

 private:
  ListNode<T> end_;
};

}  // namespace verbena::session
